"""Tokens that were added to the vocabulary of a Hugging Face model.

Up to four files next to a vocabulary name such tokens. `tokenization.py` and
`huggingface_tokenizer.py` tokenize the text between them.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, Callable, NamedTuple, Optional, Union

from tokenizers import AddedToken, Tokenizer

from adapter_bert import files
from adapter_bert.errors import UserError

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
# Of versions of transformers that write no `added_tokens_decoder`.
LEGACY_FILE, SPECIAL_FILE = "added_tokens.json", "special_tokens_map.json"
ADDED = "added_tokens"
# Of a task's own tokens in a tokenizer's description.
NEW = "new_tokens"
DECODER, ADDITIONAL = "added_tokens_decoder", "additional_special_tokens"
# In the order in which transformers gives ids.
ROLES = "bos_token eos_token unk_token sep_token pad_token cls_token mask_token"
RULES = ("single_word", "lstrip", "rstrip", "normalized", "special")
# In characters. The library ends the process with one of 250,000.
LONGEST_PIECE = 1000
# Of a task's own.
MOST_NEW_TOKENS, LONGEST_NEW_TOKEN = 10_000, 100


# A token that a task adds: a whole word, or an object of content and `RULES`.
NewToken = Union[str, dict[str, Any]]


class Added(NamedTuple):
    """An added token: index, content with rules, whether it is looked for."""

    id: int
    token: AddedToken
    is_sought: bool

    def describe(self) -> dict[str, Any]:
        """Returns the content and rules, as JSON values."""
        flags = {name: getattr(self.token, name) for name in RULES}
        return {"content": self.token.content, **flags}


def read_new_tokens(path: str) -> list[NewToken]:
    """Reads the file of `--new_tokens`: a token on each line."""
    text = files.read_text(path, "the new tokens")
    return check_new_tokens(text.splitlines(), path)


def content_of(token: NewToken) -> str:
    """Returns the letters of a token that a task adds."""
    return token if isinstance(token, str) else token["content"]


def _made(token: NewToken) -> AddedToken:
    if isinstance(token, str):
        return AddedToken(token, single_word=True)
    return AddedToken(**token)


def check_new_tokens(tokens: Any, source: str) -> list[NewToken]:
    """Checks the tokens that a task adds to a vocabulary."""
    if not isinstance(tokens, list) or not 0 < len(tokens) <= MOST_NEW_TOKENS:
        raise UserError(
            f"{source}: expected 1 to {MOST_NEW_TOKENS} new tokens, each on a "
            "line of its own"
        )
    seen = set()
    for number, token in enumerate(tokens, 1):
        if isinstance(token, dict) and set(token) == {"content", *RULES}:
            if all(isinstance(token[rule], bool) for rule in RULES):
                token = token["content"]
        if (
            not isinstance(token, str)
            or not 0 < len(token) <= LONGEST_NEW_TOKEN
            or token != token.strip()
            or token in seen
        ):
            raise UserError(
                f"{source}: token {number} is {str(token)[:80]!r}; expected 1 "
                f"to {LONGEST_NEW_TOKEN} letters without blanks around them, "
                "and each token once"
            )
        seen.add(token)
    return tokens


def as_added(
    tokens: Sequence[NewToken],
    vocabulary: Mapping[str, int],
    normalize: Callable[[str], str] = str,
) -> list[Added]:
    """Numbers a task's own tokens behind a vocabulary's.

    Texts are searched for them as `normalize` writes both.
    """
    first, seen = max(vocabulary.values()) + 1, set()
    made = [_made(token) for token in tokens]
    for added in made:
        token = normal = added.content
        if added.normalized:
            normal = normalize(token).strip()
        if {token, normal} & vocabulary.keys():
            raise UserError(
                f"the new token {token!r} is in BERT's vocabulary already; "
                "leave it out"
            )
        if not normal or normal in seen:
            raise UserError(
                f"the new token {token!r} is {normal!r} in BERT's letters, as "
                "another one is or every text; leave it out"
            )
        seen.add(normal)
    return [Added(number, one, True) for number, one in enumerate(made, first)]


def tokens_behind(
    path: str, vocabulary: Mapping[str, int], roles: Mapping[str, str]
) -> list[NewToken]:
    """Reads the tokens that files next to `path` add behind a vocabulary.

    Arguments are those of `read_added`.
    """
    last = max(vocabulary.values())
    tokens: list[NewToken] = []
    for number, token, is_sought in read_added(path, vocabulary, roles):
        if number > last and is_sought:
            described = Added(number, token, True).describe()
            word = Added(number, _made(token.content), True).describe()
            tokens.append(token.content if described == word else described)
    return tokens


def fingerprint(added: Sequence[Added]) -> dict[str, Any]:
    """Describes added tokens for a tokenizer's description; {} without any."""
    if not added:
        return {}
    text = json.dumps([a.describe() for a in added], sort_keys=True)
    return {ADDED: hashlib.sha256(text.encode()).hexdigest()}


def as_decoder(added: Sequence[Added]) -> dict[str, Any]:
    """Describes added tokens for `tokenizer_config.json`; {} without any."""
    return {DECODER: {str(a.id): a.describe() for a in added}} if added else {}


def read_added(
    path: str,
    vocabulary: Mapping[str, int],
    roles: Mapping[str, str],
    described: Optional[Mapping[str, Any]] = None,
) -> list[Added]:
    """Reads the tokens that were added to a vocabulary, by rising id.

    The model's own special tokens are left out where the vocabulary has them: a
    typed one is plain text.

    Args:
        path: of the vocabulary, next to which the files lie.
        vocabulary: ids of the entries of the tokenizer's model.
        roles: the model's special tokens, as `{"cls_token": "[CLS]"}`.
        described: the content of `tokenizer.json`; None to look for one.

    Source: transformers 4.57, `PreTrainedTokenizerBase._from_pretrained` and
    `PreTrainedTokenizerFast.__init__`.
    """

    def beside(name: str) -> dict[str, Any]:
        place = os.path.join(os.path.dirname(path), name)
        if not files.exists(place):
            return {}
        return files.read_json(place, "a description of tokens")

    described = beside(TOKENIZER_FILE) if described is None else described
    fields, legacy = beside(TOKENIZER_CONFIG_FILE), {}
    try:
        if fields.get(DECODER) is None:
            legacy, special = beside(LEGACY_FILE), beside(SPECIAL_FILE)
            both = [x.get(ADDITIONAL) or [] for x in (fields, special)]
            fields = {**fields, **special, ADDITIONAL: sum(both, [])}
        tokens, ids = _merge(described, fields, legacy)
        for role, expected in roles.items():
            token = fields.get(role)
            # The padding token has no influence.
            if role != "pad_token" and token and _content(token) != expected:
                raise UserError(
                    f"the files next to {path} say {role} {_content(token)!r}; "
                    f"expected {expected!r}, as in other models of its kind"
                )
        is_split = fields.get("split_special_tokens") is True
        return _place(tokens, ids, vocabulary, roles, is_split, path)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path}, or a file next to it, is no description of a tokenizer: "
            f"its added tokens are odd: {error!r}"
        ) from error


def _merge(
    described: Mapping[str, Any], fields: Mapping[str, Any], legacy: dict
) -> tuple[dict[str, AddedToken], dict[str, int]]:
    """Lists the tokens that any file names, with ids where a file has one."""
    # Takes the contents of `tokenizer.json`, `tokenizer_config.json` with all
    # roles, and `added_tokens.json`. As in transformers, the last one counts.
    extra: list[Any] = []
    for key in ("extra_special_tokens", "model_specific_special_tokens"):
        of_key = fields.get(key) or {}
        extra += of_key.values() if isinstance(of_key, dict) else of_key
    named = [fields[role] for role in ROLES.split() if fields.get(role)]
    more = [*(fields.get(ADDITIONAL) or []), *extra]
    special = {_content(token) for token in (*named, *more)}
    tokens: dict[str, AddedToken] = {}
    ids: dict[str, int] = {}
    for token in described.get(ADDED) or []:
        tokens[_content(token)] = _token(token)
        ids[_content(token)] = index(token["id"])
    decoder = (fields.get(DECODER) or {}).items()
    for key, token in sorted(decoder, key=lambda item: int(item[0])):
        tokens[_content(token)] = _token(token)
        ids[_content(token)] = int(key)
    for content, number in sorted(legacy.items(), key=lambda item: item[1]):
        if content not in tokens:
            tokens[content] = _token(content, content in special)
            ids[content] = index(number)
    for token in (*named, *more):
        content = _content(token)
        if content not in tokens or token in more and isinstance(token, dict):
            tokens[content] = _token(token, True)
        tokens[content].special = True
    return tokens, ids


def _content(token: Any) -> str:
    """Reads the content of a token, which is a string or an object.

    Raises:
        KeyError, TypeError, ValueError: it is neither, empty or very long.
    """
    content = token if isinstance(token, str) else token["content"]
    if not isinstance(content, str) or not 0 < len(content) <= LONGEST_PIECE:
        raise ValueError(f"a token is no text of 1 to {LONGEST_PIECE} letters")
    return content


def _token(token: Any, special: bool = False) -> AddedToken:
    flags = token if isinstance(token, dict) else {}
    flags = {name: flags[name] for name in RULES if name in flags}
    return AddedToken(_content(token), **{"special": special, **flags})


def _place(
    tokens: dict[str, AddedToken],
    ids: Mapping[str, int],
    vocabulary: Mapping[str, int],
    roles: Mapping[str, str],
    is_split: bool,
    path: str,
) -> list[Added]:
    placed = []
    following = max(vocabulary.values(), default=-1) + 1
    for content, token in tokens.items():
        number = vocabulary.get(content, following)
        following += number == following
        if ids.get(content, number) != number:
            raise UserError(
                f"{path}: the added token {content!r} has the id "
                f"{ids[content]}, but transformers gives it {number}; give "
                "added tokens the ids behind the vocabulary's, without a gap"
            )
        has_role = content in roles.values()
        if not (has_role and content in vocabulary):
            is_sought = not has_role and not (is_split and token.special)
            placed.append(Added(number, token, is_sought))
    return sorted(placed, key=lambda added: added.id)


def register(
    tokenizer: Tokenizer,
    added: Sequence[Added],
    path: str,
    change: Callable[[str], str] = str,
    **same: bool,
) -> None:
    """Has the library look for a vocabulary's added tokens in texts.

    `change` is applied to texts before the library gets them; `same` are values
    of `RULES` for all tokens.
    """
    # With this the library does not look for special tokens: here, those that
    # are not to be found.
    tokenizer.encode_special_tokens = True
    texts = [change(a.token.content) for a in added]
    seen, tokens = set(), []
    for content, (_, token, is_sought) in zip(texts, added):
        pattern = content
        if token.normalized and tokenizer.normalizer is not None:
            pattern = tokenizer.normalizer.normalize_str(content)
        if (token.normalized, pattern) in seen or not pattern:
            raise UserError(
                f"{path}: the added token {token.content!r} is {pattern!r} "
                "once it is normalized, as another one is or every text; "
                'expected its own letters; "normalized": false keeps them'
            )
        seen.add((token.normalized, pattern))
        rules = {name: getattr(token, name) for name in RULES}
        rules = {**rules, **same, "special": not is_sought}
        tokens.append(AddedToken(content, **rules))
    tokenizer.add_tokens(tokens)
    for content, (number, _, _) in zip(texts, added):
        if tokenizer.token_to_id(content) != number:
            raise UserError(
                f"{path}: the added token {content!r} would get the id "
                f"{tokenizer.token_to_id(content)}, expected {number}; does "
                "the vocabulary have an entry twice?"
            )
