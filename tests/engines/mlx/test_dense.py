"""Dense layers on a processor: what numpy's BLAS gives is what MLX gives, in every precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.engine,
    pytest.mark.usefixtures("mlx_here"),
    pytest.mark.filterwarnings("ignore"),  # what other people's packages deprecate
]


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("rows", [(1,), (2, 3), (40,)])
@pytest.mark.parametrize("count", [90, 1100])
def test_products_are_those_of_mlx(precision: str, rows: tuple[int, ...], count: int) -> None:
    """Shape, precision and numbers; small weights and some larger than a block, with numbers that are subnormal."""
    import mlx.core as mx  # noqa: PLC0415  where there is MLX
    import numpy as np  # noqa: PLC0415  where there is MLX

    from engines.mlx.server.dense import Product, Shared  # noqa: PLC0415  where there is MLX

    dtype = getattr(mx, precision)
    weight = (mx.random.normal((count, 256), key=mx.random.key(1)) * 0.05).astype(dtype)
    weight[0, :8] = mx.array([0.0, -0.0, 1e-7, -1e-7, 6e-5, -6e-5, 1.0, -2.0]).astype(dtype)
    x = mx.random.normal((*rows, 256), key=mx.random.key(2)).astype(dtype)
    made = Product(weight, Shared())(x)
    wanted = x.astype(mx.float32) @ weight.astype(mx.float32).T
    assert (made.shape, made.dtype) == ((*rows, count), dtype)
    tolerance = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[precision]
    assert np.allclose(np.array(made.astype(mx.float32)), np.array(wanted), rtol=tolerance, atol=tolerance)


def test_a_row_is_the_same_in_company() -> None:
    """Prevents: an answer with a seed was another one among others, since few rows were summed in half precision."""
    import mlx.core as mx  # noqa: PLC0415  where there is MLX

    from engines.mlx.server.dense import Product, Shared  # noqa: PLC0415  where there is MLX

    for count in (300, 2000):
        weight = (mx.random.normal((count, 256), key=mx.random.key(1)) * 0.05).astype(mx.float16)
        product = Product(weight, Shared())
        x = mx.random.normal((16, 1, 256), key=mx.random.key(2)).astype(mx.float16)
        together = product(x)
        alone = mx.concatenate([product(x[place : place + 1]) for place in range(16)])
        assert mx.mean((together == alone).astype(mx.float32)).item() > 0.995


def test_a_model_scores_the_same(mlx_models: Path) -> None:
    """All layers of a model at once, and its parameters are where they were."""
    import mlx.core as mx  # noqa: PLC0415  where there is MLX
    import numpy as np  # noqa: PLC0415  where there is MLX
    from mlx_lm.utils import load  # noqa: PLC0415  where there is MLX

    from engines.mlx.server.dense import on_the_host  # noqa: PLC0415  where there is MLX

    model, _, *_ = load(str(mlx_models / "llama"))
    mx.disable_compile()  # the compiler takes seconds
    tokens = mx.array([list(range(20, 60))])
    before, names = np.array(model(tokens).astype(mx.float32)), _names(model)
    assert on_the_host(model) == 2 * 7 + 2
    assert np.allclose(np.array(model(tokens).astype(mx.float32)), before, rtol=2e-2, atol=5e-2)
    assert _names(model) == names
    mx.enable_compile()


def test_a_model_that_compiles_its_layers_is_left_alone(mlx_models: Path) -> None:
    """Its code can't be computed eagerly: it stays as it was, and nothing is raised."""
    import mlx.core as mx  # noqa: PLC0415  where there is MLX
    from mlx import nn  # noqa: PLC0415  where there is MLX
    from mlx_lm.utils import load  # noqa: PLC0415  where there is MLX

    from engines.mlx.server.dense import HostLinear, on_the_host  # noqa: PLC0415  where there is MLX

    model, _, *_ = load(str(mlx_models / "llama"))

    class Compiled(nn.Module):  # type: ignore[misc]  # MLX has no types
        def __init__(self) -> None:
            super().__init__()
            self.inner = model
            self.run = mx.compile(lambda tokens: self.inner(mx.repeat(tokens, 600, axis=1)))

        def __call__(self, tokens: Any) -> Any:
            return self.run(tokens)

    outer = Compiled()
    assert on_the_host(outer) == 0
    assert not any(isinstance(layer, HostLinear) for layer in outer.modules())
    mx.eval(outer(mx.array([[0]])))


def test_an_input_that_was_changed_in_its_place() -> None:
    """Prevents: the rows of one layer's input were another's, since it was the same object with other numbers."""
    import mlx.core as mx  # noqa: PLC0415  where there is MLX
    import numpy as np  # noqa: PLC0415  where there is MLX

    from engines.mlx.server.dense import Product, Shared  # noqa: PLC0415  where there is MLX

    shared = Shared()
    weight = mx.random.normal((2000, 256), key=mx.random.key(1))
    first, second = Product(weight, shared, "layers.0.a"), Product(weight, shared, "layers.0.b")
    x = mx.random.normal((4, 256), key=mx.random.key(2))
    before = np.array(first(x))
    x += 1
    assert np.allclose(np.array(second(x)), np.array(x @ weight.T), atol=1e-3)
    assert not np.allclose(before, np.array(second(x)), atol=1e-3)


def test_a_tied_output_layer_too() -> None:
    """A table of vectors that serves as the output layer gives the same scores."""
    import mlx.core as mx  # noqa: PLC0415  where there is MLX
    import numpy as np  # noqa: PLC0415  where there is MLX
    from mlx import nn  # noqa: PLC0415  where there is MLX

    from engines.mlx.server.dense import HostEmbedding, Shared  # noqa: PLC0415  where there is MLX

    table = nn.Embedding(600, 512)
    quick = HostEmbedding(table, Shared())
    x = mx.random.normal((3, 512))
    assert np.allclose(np.array(quick.as_linear(x)), np.array(table.as_linear(x)), atol=1e-4)
    assert (quick(mx.array([5])) == table(mx.array([5]))).all()


def _names(model: Any) -> list[str]:
    from mlx.utils import tree_flatten  # noqa: PLC0415  where there is MLX

    return sorted(name for name, _ in tree_flatten(model.parameters()))
