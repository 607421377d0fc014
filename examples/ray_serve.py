"""ray_serve.py - several `pith serve` as replicas of one Ray Serve application, behind its proxy.

    PITH_MODEL=/models/model.gguf serve run ray_serve:app

A replica starts a server on a free port of its machine, and hands requests and streams through.
Ray sends a request with the header `serve_multiplexed_model_id` to the replica that has seen this
id before. Set it to a conversation's name, and the replica finds the conversation in its memory.
"""
import os
import re
import subprocess
import threading

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from ray import serve

CPUS = 4  # of a replica. Ray does not pin, so the server must be told
HOP_BY_HOP = {"host", "content-length", "connection", "transfer-encoding"}

web = FastAPI()


@serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": CPUS}, max_ongoing_requests=64,
                  graceful_shutdown_timeout_s=35)
@serve.ingress(web)
class Pith:
    process = None

    def __init__(self, model):
        self.process = subprocess.Popen(
            ["pith", "serve", "-m", model, "--port", "0", "-t", str(CPUS), "--drain", "30"],
            stdout=subprocess.PIPE, text=True)
        found = re.search(r"http://\S+", self.process.stdout.readline())
        if found is None:
            raise RuntimeError(f"pith serve ended with status {self.process.wait()}")
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        self.client = httpx.AsyncClient(base_url=found.group(), timeout=None)

    async def check_health(self):
        (await self.client.get("/health/live")).raise_for_status()

    def __del__(self):
        if self.process is not None:
            self.process.terminate()
            self.process.wait()

    # A replica takes conversations as Ray's multiplexed models; there is nothing to load.
    @serve.multiplexed(max_num_models_per_replica=1000)
    async def conversation(self, name):
        return name

    @web.api_route("/{path:path}", methods=["GET", "POST"])
    async def hand_through(self, path: str, request: Request):
        name = serve.get_multiplexed_model_id()
        head = {k: v for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP}
        if name:
            head["x-session-id"] = await self.conversation(name)
        inner = self.client.build_request(request.method, "/" + path, headers=head,
                                          params=request.query_params,
                                          content=await request.body())
        answer = await self.client.send(inner, stream=True)
        head = {k: v for k, v in answer.headers.items() if k.lower() not in HOP_BY_HOP}

        async def pieces():
            try:
                async for piece in answer.aiter_raw():
                    yield piece
            finally:  # a client that hangs up cancels its answer
                await answer.aclose()
        return StreamingResponse(pieces(), answer.status_code, head)


app = Pith.bind(os.environ.get("PITH_MODEL", ""))
