"""The servers that `speed.service` compares, each in a process of its own."""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

NOTHING = "/nothing"


def ours(folder: str, url: str | None) -> None:
    """The service itself, and beside it a route that reads the same body and does nothing with it."""
    from meruit.api import app as build
    from meruit.api.auth import ANYONE
    from meruit.api.logging import configure_logs
    from meruit.api.request import ApiRequest
    from meruit.api.routes.verify import VerifyRequest
    from meruit.api.server import ShutdownSignal, run
    from meruit.config import Settings
    from meruit.store.location import Location
    from meruit.store.store import Store
    from meruit.web.parameters import JSONBody
    from meruit.web.responses import Response
    from meruit.web.routing import post

    @post(NOTHING, status_code=200, guards=[ANYONE])
    async def nothing(data: JSONBody[VerifyRequest], request: ApiRequest) -> Response[bytes]:  # noqa: ARG001 - read, unused
        return Response(b'{"ok":true}', media_type="application/json")

    build.LARGE_BODY_ROUTES.append(nothing)
    configure_logs(stream=Path(os.devnull).open("w"))  # noqa: SIM115 - open as long as the server
    store = Store.open(Location(Path(folder), url))
    settings = Settings.model_validate({"service": {"requests_per_minute": 10**9}})
    stopping = ShutdownSignal()
    try:
        app = build.build_app(build.build_service(settings, store, stopping))
        run(app, "127.0.0.1", 0, ready=lambda where: print(where, flush=True), stopping=stopping)
    finally:
        store.close()


def ordinary(folder: str, url: str | None) -> None:
    """What most would write: FastAPI, pydantic and a SQLAlchemy session a request, doing the same."""
    import socket

    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel
    from sqlalchemy import JSON, Boolean, String, create_engine, event
    from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

    from speed import specified

    class Base(DeclarativeBase):
        pass

    class Outcome(Base):
        __tablename__ = "outcomes"
        id: Mapped[str] = mapped_column(String, primary_key=True)
        success: Mapped[bool] = mapped_column(Boolean)
        work: Mapped[dict[str, Any]] = mapped_column(JSON)
        result: Mapped[dict[str, Any]] = mapped_column(JSON)

    class VerifyBody(BaseModel):
        criteria: dict[str, Any]
        output: dict[str, Any]
        input: dict[str, Any] = {}
        metadata: dict[str, Any] = {}

    database = create_engine(
        url.replace("postgresql://", "postgresql+psycopg://") if url else f"sqlite:///{folder}/o.db"
    )
    if url is None:

        @event.listens_for(database, "connect")
        def durable(connection: Any, _record: Any) -> None:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")

    Base.metadata.drop_all(database)
    Base.metadata.create_all(database)
    kinds = (specified.LatencyExtractor, specified.TextQualityExtractor, specified.ContainsExtractor)
    engine = specified.VerificationEngine({kind.__name__: kind() for kind in kinds}, specified.Governance())
    app = FastAPI()

    @app.post("/v1/verify")
    async def verify(body: VerifyBody) -> dict[str, Any]:
        outcome_id = os.urandom(16).hex()
        criteria = specified.SuccessCriteria.model_validate(body.criteria)
        judged = await engine.verify(outcome_id, body.input, body.output, criteria, body.metadata)
        result, work = judged.model_dump(mode="json"), body.model_dump(mode="json")
        with Session(database) as session:
            session.add(Outcome(id=outcome_id, success=judged.success, work=work, result=result))
            session.commit()
        return {"outcome_id": outcome_id, "result": result}

    logging.disable(logging.INFO)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, access_log=False, log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    settings = json.loads(sys.argv[2])
    {"ours": ours, "ordinary": ordinary}[sys.argv[1]](settings["folder"], settings["url"])
