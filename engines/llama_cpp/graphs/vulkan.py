"""The order in which llama.cpp's Vulkan backend computes the nodes of a split.

Facts from ``ggml_vk_graph_optimize``: it looks 20 nodes ahead for ones that wait for nothing, keeps the pairs that it
fuses together, and so lengthens some lifetimes.
"""

from __future__ import annotations

from collections.abc import Sequence

from engines.llama_cpp.graphs.tensors import NOTHING, VIEWS, Tensor

_AHEAD = 20
_NEAR = 15
_NEAREST = 10
_EMPTY = VIEWS | {NOTHING}
_KEPT = tuple(
    tuple(text.split())
    for text in (
        "SOFT_MAX RESHAPE ARGSORT VIEW GET_ROWS RESHAPE SUM_ROWS CLAMP DIV RESHAPE",
        "UNARY RESHAPE ADD ARGSORT VIEW GET_ROWS RESHAPE SUM_ROWS CLAMP DIV RESHAPE",
        "UNARY SQRT RESHAPE ADD ARGSORT VIEW GET_ROWS RESHAPE SUM_ROWS CLAMP DIV RESHAPE",
        "SOFT_MAX RESHAPE ARGSORT VIEW GET_ROWS",
        "ARGSORT VIEW GET_ROWS RESHAPE SOFT_MAX RESHAPE",
    )
)
_FUSED = frozenset(
    {
        ("RMS_NORM", "MUL"),
        ("MUL_MAT", "ADD"),
        ("MUL_MAT_ID", "ADD_ID"),
        ("MUL_MAT_ID", "MUL"),
        ("ADD", "ADD"),
        ("SSM_CONV", "ADD"),
        ("SSM_CONV", "UNARY"),
    }
)
# After such a pair, the operation that is pulled up to it.
_PULLED = {("MUL_MAT_ID", "ADD_ID"): "MUL", ("MUL_MAT", "ADD"): "ADD", ("SSM_CONV", "ADD"): "UNARY"}


def reorder(nodes: Sequence[Tensor]) -> list[Tensor]:
    """The nodes in the backend's order."""
    return _Order(nodes).run()


class _Order:
    def __init__(self, nodes: Sequence[Tensor]) -> None:
        self._nodes = nodes
        self._used = [False] * len(nodes)
        self._done: set[int] = set()
        self._order: list[Tensor] = []
        self._first = 0
        self._at: dict[int, int] = {}
        self._family: dict[int, list[int]] = {}
        for index, node in enumerate(nodes):
            self._at[id(node)] = index
            self._family.setdefault(id(node.root or node), []).append(index)

    def run(self) -> list[Tensor]:
        while self._first < len(self._nodes):
            kept = next((pattern for pattern in _KEPT if self._matches(pattern, self._first)), None)
            if kept is not None:
                self._push(range(self._first, self._first + len(kept)))
                continue
            chosen = [self._first]
            self._choose_real(chosen)
            if self._nodes[chosen[-1]].op != "ADD":
                self._choose_views(chosen)
            self._push(chosen)
        return self._order

    def _push(self, chosen: Sequence[int]) -> None:
        for index in chosen:
            self._order.append(self._nodes[index])
            self._done.add(id(self._nodes[index]))
            self._used[index] = True
        while self._first < len(self._nodes) and self._used[self._first]:
            self._first += 1

    def _matches(self, pattern: tuple[str, ...], start: int) -> bool:
        if start + len(pattern) > len(self._nodes) or self._nodes[start].op != pattern[0]:
            return False
        return all(
            self._nodes[start + place].op == op and not self._used[start + place] for place, op in enumerate(pattern)
        )

    def _waits_for(self, index: int) -> list[int]:
        """Nodes before ``index`` that it needs and that are not yet in the order."""
        node = self._nodes[index]
        needed = {self._at[id(source)] for source in node.srcs if id(source) in self._at}
        needed.update(self._family[id(node.root or node)])
        return [place for place in needed if self._first <= place < index and not self._used[place]]

    def _choose_real(self, chosen: list[int]) -> None:
        for index in range(self._first + 1, min(self._first + _AHEAD, len(self._nodes))):
            node = self._nodes[index]
            if self._used[index] or node.op in _EMPTY or any(self._matches(kept, index) for kept in _KEPT):
                continue
            waits = self._waits_for(index)
            pair = (self._nodes[index - 1].op, node.op)
            fused = waits == [index - 1] and chosen[-1] == index - 1 and pair in _FUSED
            if waits and not fused:
                continue
            chosen.append(index)
            self._pull(index, chosen)

    def _pull(self, index: int, chosen: list[int]) -> None:
        pair = (self._nodes[index - 1].op, self._nodes[index].op)
        rope = index
        if pair == ("RMS_NORM", "MUL"):
            found = self._user(index, "ROPE", _NEAR, ready=True)
            if found is not None:
                rope = found
                chosen.append(rope)
                self._used[rope] = True
        if self._nodes[rope].op == "ROPE":
            self._pull_store(rope, chosen)
        if pair in _PULLED:
            found = self._user(index, _PULLED[pair], _NEAR, ready=pair[0] != "SSM_CONV")
            if found is not None:
                chosen.append(found)
                self._used[found] = True

    def _user(self, index: int, op: str, within: int, *, ready: bool) -> int | None:
        """The next node of ``op`` whose first source is the node at ``index``."""
        source = self._nodes[index]
        for place in range(index + 1, min(index + within, len(self._nodes))):
            node = self._nodes[place]
            if node.op != op or not node.srcs or node.srcs[0] is not source:
                continue
            others = node.srcs[1:] if ready else []
            settled = (other.op == NOTHING or (op != "ROPE" and id(other) in self._done) for other in others)
            if all(settled):
                return place
        return None

    def _pull_store(self, rope: int, chosen: list[int]) -> None:
        """Keep a rope, its view and the write into the cache together."""
        seen: int | None = None
        for place in range(rope + 1, min(rope + _NEAREST, len(self._nodes))):
            node = self._nodes[place]
            first = node.srcs[0] if node.srcs else None
            if seen is None and node.op == "VIEW" and first is self._nodes[rope]:
                seen = place
            elif seen is not None and node.op == "SET_ROWS" and first is self._nodes[seen]:
                chosen += (seen, place)
                self._used[seen] = self._used[place] = True
                return

    def _choose_views(self, chosen: list[int]) -> None:
        for index in range(self._first + 1, min(self._first + _AHEAD, len(self._nodes))):
            if self._used[index] or self._nodes[index].op not in _EMPTY:
                continue
            if all(place in chosen for place in self._waits_for(index)):
                chosen.append(index)
