"""Merges and scores: the two ways to say which pair of pieces joins first.

SentencePiece (GGUF's `llama` tokenizer) scores tokens: of all neighbours whose text together is a token, the one
with the highest score joins. tokenizer.json ranks pairs. Every way to cut a token into two tokens becomes a
pair; pairs are ranked by the score of what they make, longer left parts first, so that runs grow from the left
as far as they can. The way back ranks tokens by the first pair that makes them: score = −rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flyweight.errors import LimitError
from flyweight.models.vocabulary import TokenType

__all__ = ["merges_from_scores", "scores_from_merges"]

_MAX_CUTS_BYTES = 2**30  # the text all cuts together would copy; the largest vocabularies need a hundredth

_MERGING = (TokenType.NORMAL, TokenType.USER_DEFINED)


def merges_from_scores(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The ranked pairs that join pieces in the order of the scores."""
    if sum(len(token) ** 2 for token in tokens) > _MAX_CUTS_BYTES:
        raise LimitError("the tokens are too long to be cut in every place", code="E_TOKENIZER")
    pieces = {token for token, type_ in zip(tokens, types, strict=True) if type_ in _MERGING}
    ranked: list[tuple[float, int, int, str, str]] = []
    for token, type_, score in zip(tokens, types, scores, strict=True):
        if type_ not in _MERGING:
            continue
        # Tokens of the user are taken wherever they appear, before any other.
        priority = score if type_ == TokenType.NORMAL else float("inf")
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in pieces and right in pieces:
                ranked.append((-priority, -len(left), -len(right), left, right))
    ranked.sort(key=lambda pair: pair[:3])  # stable: pairs alike stay in the order of the tokens
    return [(left, right) for *_, left, right in ranked]


def scores_from_merges(ids: Mapping[str, int], types: Sequence[int], merges: Sequence[tuple[str, str]]) -> dict[int, float]:
    """The score of every normal token that a pair makes, by its id."""
    scores: dict[int, float] = {}
    for left, right in merges:
        made = ids.get(left + right)
        if made is not None and made not in scores and types[made] == TokenType.NORMAL:
            scores[made] = -float(len(scores))
    return scores
