import pickle

from rlinf.core.errors import ConfigErrors, MissingExtra, UnknownName, WorkerError, below, error_text


def test_a_worker_error_shows_its_traceback_below_its_text() -> None:
    own = "Traceback (most recent call last):\n  x\n"
    error = WorkerError("env", 1, "step", "KeyError: 'b'", remote_traceback="all of it", folded=own)
    assert str(error) == "env[1] failed in step(): KeyError: 'b'"
    assert error.__notes__ == ["Traceback of env[1] (most recent call last):\n  x"]
    assert error.remote_traceback == "all of it"
    assert pickle.loads(pickle.dumps(error)).__notes__ == error.__notes__
    log = "Last lines of its log:\nx"
    assert WorkerError("env", 1, "", "died", remote_traceback=log + "\n").__notes__ == [log]
    assert not hasattr(WorkerError("env", 1, "", "died"), "__notes__")


def test_the_faults_of_a_section_keep_their_kind_below_its_name() -> None:
    one = below("env.tools", MissingExtra("mcp", "is not installed", "Install it."))
    assert (type(one), str(one)) == (MissingExtra, "env.tools.mcp: is not installed. Install it.")
    both = below("env", ConfigErrors("tools", [UnknownName("a", "no"), UnknownName("b", "no")]))
    assert isinstance(both, ConfigErrors)
    assert [fault.place for fault in both.faults] == ["env.a", "env.b"]


def test_an_error_without_words_is_told_by_its_name() -> None:
    assert error_text(ValueError("no")) == "ValueError: no"
    assert error_text(AssertionError()) == "AssertionError"
