import json

from rlinf.core.language.generation import SamplingConfig
from rlinf.runners.reasoning.generation.prompt_groups import JobSpec, ProblemSource, PromptGroup


def source(**options: object) -> ProblemSource:
    return ProblemSource(5, seed=3, shuffle=bool(options.get("shuffle", True)))


def test_each_pass_has_every_problem_once_and_an_order_of_its_own() -> None:
    drawn = [prompt_group.problem for prompt_group in source().draw(15)]
    passes = [drawn[:5], drawn[5:10], drawn[10:]]
    assert all(sorted(one) == [0, 1, 2, 3, 4] for one in passes)
    assert len({tuple(one) for one in passes}) == 3
    assert [prompt_group.problem for prompt_group in source(shuffle=False).draw(7)] == [0, 1, 2, 3, 4, 0, 1]


def test_it_goes_on_where_it_stopped() -> None:
    whole = source().draw(12)
    one = source()
    assert one.draw(7) == whole[:7]
    again = source()
    again.restore(json.loads(json.dumps(one.state())))
    assert again.draw(5) == whole[7:]


def test_what_was_given_back_and_what_is_under_way_comes_first_after_a_restart() -> None:
    one = source()
    first = one.draw(6)
    one.give_back(first[4:])
    state = json.loads(json.dumps(one.state(first[2:4])))
    again = source()
    again.restore(state)
    drawn = again.draw(5)
    assert [prompt_group.group for prompt_group in drawn] == [2, 3, 4, 5, 6]
    assert [prompt_group.again for prompt_group in drawn] == [False, False, True, True, False]


def test_shares_leave_out_nobody_and_ask_for_exactly_what_is_needed() -> None:
    sampling = SamplingConfig(max_new_tokens=4)
    for groups in range(1, 12):
        for needed in range(1, groups + 1):
            for ranks in range(1, 5):
                prompt_groups = tuple(PromptGroup(group=g, problem=g, again=g < min(needed, 3)) for g in range(groups))
                job = JobSpec(
                    key="k", split="train", prompt_groups=prompt_groups, needed=needed, samples=1, sampling=sampling, shown=0
                )
                shares = [job.share(rank, ranks) for rank in range(ranks)]
                assert sorted(prompt_group.group for own, _ in shares for prompt_group in own) == list(range(groups))
                assert sum(count for _, count in shares) == needed
                assert all(sum(prompt_group.again for prompt_group in own) <= count <= len(own) for own, count in shares)
