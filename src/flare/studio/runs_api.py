"""The runs of the studio's folder for the Runs screen: their list, curves, comparison, rounds, and news of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from flare.records.growing import GrowingRun
from flare.research.quantities import AXES, QUANTITIES
from flare.studio.answers import NO_RUN, answer
from flare.studio.round_view import RoundViews
from flare.studio.run_curves import MAX_POINTS, CurveWish, Named, compared, curves
from flare.studio.run_events import MAX_LISTENERS, RunEvents
from flare.studio.run_index import RunIndex
from flare.studio.settings import Studio
from flare.text import one_line

MAX_PICKED = 200
"""Runs whose curves are drawn at once."""
MAX_SPARKLINES = 100
READING_S = 0.5
"""How long a request reads on in records that nobody has read yet; the page draws what there is and asks again."""
MAX_READING_S = 8.0
"""And one that asks for a round far into them."""

RunId = Annotated[str, Field(max_length=1000)]


class Picked(BaseModel):
    """Some runs, by their folders seen from the studio's."""

    model_config = ConfigDict(extra="forbid")
    runs: list[RunId] = Field(max_length=MAX_PICKED)


class CurvesAsked(Picked):
    """Which curves of them are drawn."""

    metric: str = Field("accuracy", max_length=40)
    x: str = Field("rounds", max_length=40)
    points: int = Field(400, ge=2, le=MAX_POINTS)
    begin: float | None = None
    end: float | None = None
    together: bool = True

    @property
    def asked(self) -> CurveWish:
        """What `curves` is given."""
        return CurveWish(self.metric, self.x, self.points, self.begin, self.end, self.together)


def router(studio: Studio) -> APIRouter:
    """The routes of this file."""
    routes, index = APIRouter(tags=["runs"]), RunIndex(studio.folder)
    _add_list(routes, index)
    _add_curves(routes, index)
    _add_rounds(routes, index)
    return routes


def _add_list(routes: APIRouter, index: RunIndex) -> None:
    """The list of runs, and news of it."""
    events = RunEvents(index)

    @routes.get("/api/runs", summary="Every run below the studio's folder")
    def runs() -> Response:
        lines = index.lines()
        return answer(
            {
                "runs": [{**line.as_json(), "sparkline": index.held_sparkline(line.id)} for line in lines],
                "is_cut": index.folders.is_cut,
                "quantities": {name: each.label for name, each in QUANTITIES.items()},
                "axes": {name: each.label for name, each in AXES.items()},
            }
        )

    @routes.post("/api/runs/sparklines", summary="Some test accuracies along each of some runs")
    def sparklines(picked: Picked) -> Response:
        found: dict[str, list[float]] = {}
        for run in picked.runs[:MAX_SPARKLINES]:
            try:
                found[run] = index.sparkline(run)
            except LookupError:  # gone meanwhile
                found[run] = []
        return answer({"sparklines": found})

    @routes.get("/api/events", summary="Runs as they change, as server-sent events")
    async def news() -> Response:
        if events.listeners >= MAX_LISTENERS:
            raise HTTPException(503, f"{MAX_LISTENERS} pages listen already; close one")
        return StreamingResponse(events.stream(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


def _add_curves(routes: APIRouter, index: RunIndex) -> None:
    """Curves of runs, and their comparison."""

    @routes.post("/api/runs/curves", summary="Curves of some runs, means over seeds with their intervals")
    def some_curves(picked: CurvesAsked) -> Response:
        return answer(_of_runs(index, picked.runs, lambda named: curves(named, picked.asked)))

    @routes.post("/api/runs/compare", summary="Groups of seeds compared pair by pair")
    def compare(picked: Picked) -> Response:
        return answer(_of_runs(index, picked.runs, compared))

    @routes.get("/api/runs/{run:path}/curves", summary="A curve of one run")
    def one_curve(
        run: str,
        metric: str = "accuracy",
        x: str = "rounds",
        points: Annotated[int, Query(ge=2, le=MAX_POINTS)] = 400,
        begin: float | None = None,
        end: float | None = None,
    ) -> Response:
        asked = CurveWish(metric, x, points, begin, end, together=False)
        return answer(_of_runs(index, [run], lambda named: curves(named, asked), strict=True))


def _add_rounds(routes: APIRouter, index: RunIndex) -> None:
    """Single rounds of runs."""
    views, drawing = RoundViews(index.root), threading.Lock()

    @routes.get("/api/runs/{run:path}/at", summary="The round of a run at a place of an axis, as on a curve")
    def round_at(run: str, value: float, x: str = "rounds") -> Response:
        with _read_up_to(index, run, int(min(max(value, 0.0), 1e15)) if x == "rounds" else 0) as growing, drawing:
            if not growing.num_rounds:
                raise HTTPException(404, "it has no rounds yet")
            return answer(views.view(run, growing, views.nearest(growing, x, value)))

    @routes.get("/api/runs/{run:path}/rounds/{number}", summary="One round of a run, its cell and its schedule")
    def one_round(run: str, number: int) -> Response:
        with _read_up_to(index, run, number) as growing, drawing:
            if not 0 <= number < growing.num_rounds:
                raise HTTPException(404, f"there is no round {number}; {growing.num_rounds} are recorded")
            return answer(views.view(run, growing, number))


def _of_runs(
    index: RunIndex, runs: list[str], made: Callable[[list[Named]], dict[str, Any]], *, strict: bool = False
) -> dict[str, Any]:
    """What is made of the numbers of some runs, as far as they could be read in the time of a request; with what is
    wrong with those that could not be. `strict`: 404 where there is no such run."""
    named: list[Named] = []
    problems: dict[str, str] = {}
    shares: list[float] = []
    end = time.monotonic() + READING_S
    for run in dict.fromkeys(runs):
        try:
            with index.reading(run, max(0.02, end - time.monotonic())) as growing:
                named.append((run, growing.numbers))
                shares.append(growing.share_read)
                if growing.fault:
                    problems[run] = _inside_words(index, growing.fault)
        except LookupError:
            if strict:
                raise HTTPException(404, NO_RUN) from None
            problems[run] = NO_RUN
        except (ValueError, OSError) as error:
            problems[run] = _inside_words(index, str(error))
    told = made(named) if named else {"curves": [], "groups": [], "rankings": []}
    share = sum(shares) / len(shares) if shares else 1.0
    return {**told, "share_read": round(share, 3), "problems": problems}


@contextmanager
def _read_up_to(index: RunIndex, run: str, number: int) -> Iterator[GrowingRun]:
    """A run, read so far that it has the round of that number, where it has; 404 where there is no such run."""
    try:
        with index.reading(run, READING_S) as growing:
            end = time.monotonic() + MAX_READING_S
            while growing.num_rounds <= number and not growing.is_whole and time.monotonic() < end:
                growing.read_on(READING_S)
            yield growing
    except LookupError:
        raise HTTPException(404, NO_RUN) from None


def _inside_words(index: RunIndex, message: str) -> str:
    """A message with paths as seen from the studio's folder."""
    return one_line(message.replace(f"{index.root}/", "").replace(str(index.root), "."))
