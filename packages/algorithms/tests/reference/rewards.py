"""Rewards, character by character and word by word."""

from __future__ import annotations


def normal(text: str) -> list[str]:
    """The words that SQuAD's normal form leaves, in order; an article is one wherever no letter or digit touches it."""
    punctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
    kept = "".join(character for character in text.lower() if character not in punctuation)
    pieces: list[str] = []
    for character in kept:
        if pieces and pieces[-1][-1].isalnum() and character.isalnum():
            pieces[-1] += character
        else:
            pieces.append(character)
    return "".join(" " if piece in ("a", "an", "the") else piece for piece in pieces).split()


def exact_match_score(prediction: str, answers: list[str]) -> float:
    """1 if the words are those of any answer, else 0."""
    for answer in answers:
        if normal(answer) == normal(prediction):
            return 1.0
    return 0.0


def substring_match_score(prediction: str, answers: list[str]) -> float:
    """1 if the text of any answer that has words is somewhere in that of the prediction, else 0."""
    for answer in answers:
        right = " ".join(normal(answer))
        if right != "" and right in " ".join(normal(prediction)):
            return 1.0
    return 0.0


def f1_score(prediction: str, answers: list[str]) -> float:
    """2 P R / (P + R) of the best answer; a shared word is struck out of both."""
    best = 0.0
    for answer in answers:
        found, right = normal(prediction), normal(answer)
        if found == right:
            return 1.0
        left, shared = list(right), 0
        for word in found:
            if word in left:
                left.remove(word)
                shared += 1
        if shared > 0:
            precision, recall = shared / len(found), shared / len(right)
            best = max(best, 2.0 * precision * recall / (precision + recall))
    return best


def repetition(text: str, *, ngram: int) -> float:
    """1 − different n-grams / n-grams; 0 if there is none."""
    words = text.lower().split()
    grams: list[list[str]] = []
    different: list[list[str]] = []
    for start in range(len(words) - ngram + 1):
        gram = words[start : start + ngram]
        grams.append(gram)
        if gram not in different:
            different.append(gram)
    return 1.0 - len(different) / len(grams) if grams else 0.0


def overlong_penalty(length: list[float], *, max_length: int, cache: int) -> list[float]:
    """0; ((L_max − L_cache) − |y|) / L_cache; −1."""
    penalties: list[float] = []
    for size in length:
        if size <= max_length - cache:
            penalties.append(0.0)
        elif size <= max_length:
            penalties.append(((max_length - cache) - size) / cache)
        else:
            penalties.append(-1.0)
    return penalties


def weighted(parts: dict[str, tuple[float, list[float]]]) -> tuple[list[float], dict[str, float]]:
    """Σ_p w_p r_{p,i} for each pair i; and the mean of each part before its weight, of the sum as `score`."""
    count = len(next(iter(parts.values()))[1])
    values: list[float] = []
    for i in range(count):
        total = 0.0
        for weight, scores in parts.values():
            total += weight * scores[i]
        values.append(total)
    means = {"score": sum(values) / count}
    for name, (_, scores) in parts.items():
        means[name] = sum(scores) / count
    return values, means


def item_f1(prediction: str, answer: str, separator: str) -> float:
    """Cells are crossed off one by one: 2 · crossed off / (cells said + cells asked for)."""

    def cells(text: str) -> list[tuple[str, int, str]]:
        found: list[tuple[str, int, str]] = []
        for line in text.split("\n"):
            parts = [part.strip().lower() for part in line.strip().split(separator)]
            found += [(parts[0], column, parts[column]) for column in range(1, len(parts))]
        return found

    said, asked = cells(prediction), cells(answer)
    left, crossed = list(asked), 0
    for cell in said:
        if cell in left:
            left.remove(cell)
            crossed += 1
    if not said and not asked:
        return 1.0
    return 2 * crossed / (len(said) + len(asked))
