"""Compiling ``crossJoin`` of two streams: before the shuffle, each row is copied to the cells of a grid that it belongs to."""

from __future__ import annotations

from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile.buffers import readers
from headrace.compile.plan import Description, Input, Results, StatefulPlan, Timing
from headrace.compile.registry import compiles
from headrace.compile.sides import (
    Joined,
    SideColumns,
    bound_in_words,
    hash_of_row,
    own_templates,
    pair_columns,
    share_places,
    side_columns,
    text_of,
    travelling,
)
from headrace.config import Config
from headrace.errors import UnsupportedError
from headrace.graph.nodes import ProductNode
from headrace.ids import SLOT_BITS, SLOTS
from headrace.operators.expressions import Expr
from headrace.operators.kernel import OutputMode
from headrace.operators.last import TIE, LastJoin
from headrace.operators.lifetime import NEVER
from headrace.operators.pairing import LEFT, RIGHT, SIDE, Pairing
from headrace.operators.product import WindowedProduct
from headrace.state.layout import HASH, SUB

_PLACE = "__headrace_place"


@compiles(ProductNode)
def compile_product(node: ProductNode, config: Config) -> StatefulPlan:
    """The plan of a product: rows go to the cells of a grid, and the kernel compares all pairs of each cell."""
    frames = own_templates(tuple(stream.frame for stream in node.inputs))
    sides = side_columns(frames[0], (), node.where), side_columns(frames[-1], (), node.where)
    columns = pair_columns(sides, (False, False), node.suffixes, node.where)
    places, kinds = share_places(sides)
    pairing = Pairing(
        (sides[LEFT].layout(), sides[RIGHT].layout()), places, one_input=False, condition=_condition(node, columns), where=node.where
    )
    grid = config.grid
    operator: WindowedProduct | LastJoin
    if node.within_us is not None:
        operator = WindowedProduct(pairing, node.within_us, grid, of_one=len(frames) == 1)
        window, hold_ms, schema = bound_in_words(node.within_us, sides), -(-node.within_us // 1000), columns.schema
    else:
        size = node.last_per_cell or 0
        operator, hold_ms, schema = LastJoin(pairing, size), 0, columns.schema_without_event_time
        window = f"the last {size} rows of either side, in each cell"
    tie = TIE in operator.input_schema.names
    modes = (OutputMode.APPEND, OutputMode.UPDATE) if operator.emits_at_once(OutputMode.UPDATE) else (OutputMode.APPEND,)
    return StatefulPlan(
        kind="crossJoin",
        input=Input(
            frames=frames,
            selected=_selected(sides, places, kinds, grid, one_input=len(frames) == 1, tie=tie),
            keyed=(SUB,),
            hashed=F.col(HASH),
            values=tuple(F.col(name) for name in [SIDE, *(f"v{i}" for i in range(len(kinds))), *([TIE] if tie else [])]),
        ),
        operator=operator,
        results=Results(columns.kernel_schema(), columns.finish(), schema),
        readers=readers(operator, sides, kinds),
        description=Description(
            {
                "operator": "crossJoin",
                "with": "itself" if len(frames) == 1 else "another stream",
                "grid": f"{grid[0]} x {grid[1]}",
                "window": window,
                "condition": text_of(node.condition),
                "columns": columns.schema.names,
            },
            only_shown=("columns",),
            resolved=partial(columns.resolved, [], node.condition),
        ),
        timing=Timing(uses_watermark=True, modes=modes, hold_ms=hold_ms),
    )


def _condition(node: ProductNode, columns: Joined) -> Expr | None:
    if node.condition is None:
        return None
    columns.check(node.condition, node.where)
    try:
        return columns.translated(node.condition, node.where)
    except UnsupportedError as refused:
        raise UnsupportedError(
            "the condition of a product is evaluated on all pairs at once, and this part of it cannot be",
            where=node.where,
            found=f"{refused.found} in {refused.where}",
            hint="compute it per row before, with withColumn, or leave it to a filter on the result",
        ) from None


def _selected(
    sides: tuple[SideColumns, SideColumns],
    places: tuple[tuple[str, ...], tuple[str, ...]],
    kinds: list[T.DataType],
    grid: tuple[int, int],
    one_input: bool,
    tie: bool,
) -> DataFrame:
    """The rows of both sides, one copy for each cell that a row belongs to."""
    if one_input:
        # Both sides share the value columns, so a row is encoded once and copied for both sides.
        cells = F.concat(_cells(sides[LEFT], LEFT, grid), _cells(sides[RIGHT], RIGHT, grid))
        return _dealt(sides[LEFT], places[LEFT], kinds, cells, tie)
    left, right = (_dealt(side, places[which], kinds, _cells(side, which, grid), tie) for which, side in enumerate(sides))
    return left.union(right)


def _dealt(side: SideColumns, places: tuple[str, ...], kinds: list[T.DataType], cells: Column, tie: bool) -> DataFrame:
    rows = side.frame.select(*travelling(side, None, places, kinds, tie), cells.alias(_PLACE)).filter(F.col(SUB) != NEVER)
    kept = [name for name in rows.columns if name not in (SUB, _PLACE)]
    dealt = rows.select(SUB, *kept, F.explode(_PLACE).alias(_PLACE))
    return dealt.select(F.col(f"{_PLACE}.h").alias(HASH), SUB, F.col(f"{_PLACE}.side").alias(SIDE), *kept)


def _cells(side: SideColumns, which: int, grid: tuple[int, int]) -> Column:
    """The cells of a row: those of its grid row (left side) or grid column (right side), given by their hashes.

    Cells are spread evenly over all slots. Instances own ranges of slots, so they get about the same number of cells.
    """
    bucket = F.pmod(hash_of_row(side.frame), F.lit(grid[which])).cast("long")
    others = F.sequence(F.lit(0), F.lit(grid[1 - which] - 1)).cast("array<bigint>")

    def place(other: Column) -> Column:
        cell = bucket * grid[RIGHT] + other if which == LEFT else other * grid[RIGHT] + bucket
        slot = F.floor(cell * SLOTS / F.lit(grid[LEFT] * grid[RIGHT])).cast("long")
        return F.struct(F.shiftleft(slot, 64 - SLOT_BITS).alias("h"), F.lit(which).cast("byte").alias("side"))

    return F.transform(others, place)
