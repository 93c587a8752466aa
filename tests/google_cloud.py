"""Google Cloud as a program sees it, on this machine.

One server answers for the metadata of a virtual machine, for the API's
description of itself, and for the API.
"""

import contextlib
import http.server
import json
import threading

ZONE, PROJECT = "us-central2-b", "my-project"
DISCOVERY = {
    "name": "tpu",
    "version": "v2",
    "servicePath": "",
    "resources": {
        "projects": {
            "resources": {
                "locations": {
                    "resources": {
                        "nodes": {
                            "methods": {
                                "get": {
                                    "id": "tpu.projects.locations.nodes.get",
                                    "path": "v2/{+name}",
                                    "httpMethod": "GET",
                                    "parameterOrder": ["name"],
                                    "parameters": {
                                        "name": {
                                            "location": "path",
                                            "required": True,
                                            "type": "string",
                                        }
                                    },
                                    "response": {"$ref": "Node"},
                                }
                            }
                        }
                    }
                }
            }
        }
    },
    "schemas": {"Node": {"id": "Node", "type": "object", "properties": {}}},
}
ACCOUNT = "instance/service-accounts/default/"


def metadata(own_tpu):
    """What a virtual machine is told of itself, path -> answer."""
    return {
        "instance/zone": f"projects/123/zones/{ZONE}",
        "instance/attributes/instance-id": own_tpu,
        "project/project-id": PROJECT,
        "universe/universe-domain": "googleapis.com",
        ACCOUNT: json.dumps(
            {"email": "me@example.com", "scopes": [], "aliases": ["default"]}
        ),
        ACCOUNT + "token": json.dumps(
            {"access_token": "x", "expires_in": 3600, "token_type": "Bearer"}
        ),
    }


@contextlib.contextmanager
def serve(own_tpu, nodes, flavor="Google"):
    """Serves until the context ends, and yields the variables that lead there.

    Args:
        own_tpu: name of the TPU of the virtual machine.
        nodes: name of a TPU -> what the API says of it, or an HTTP status.
        flavor: the header that tells answers of Google's.
    """
    values = metadata(own_tpu)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            path = self.path.partition("?")[0]
            host = self.headers["Host"]
            place = f"/v2/projects/{PROJECT}/locations/{ZONE}/nodes/"
            if path == "/":
                # Whether this is a virtual machine at all.
                self.answer(200, "", "")
            elif path.startswith("/computeMetadata/v1/"):
                key = path[len("/computeMetadata/v1/") :]
                kind = "application/json" if "{" in values.get(key, "") else ""
                self.answer(
                    200 if key in values else 404, values.get(key, ""), kind
                )
            elif path == "/discovery":
                described = {**DISCOVERY, "rootUrl": f"http://{host}/"}
                self.answer(200, json.dumps(described), "application/json")
            elif path.startswith(place):
                assert self.headers["Authorization"] == "Bearer x"
                node = nodes.get(path[len(place) :], 404)
                status = node if isinstance(node, int) else 200
                if status != 200:
                    node = {"error": {"code": status, "message": "so it is"}}
                self.answer(status, json.dumps(node), "application/json")
            else:
                self.answer(400, "", "")

        def answer(self, status, text, kind):
            self.send_response(status)
            self.send_header("Metadata-Flavor", flavor)
            self.send_header("Content-Type", kind or "text/plain")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"127.0.0.1:{server.server_port}"
    try:
        yield {
            "GCE_METADATA_HOST": address,
            "GCE_METADATA_IP": address,
            "TPU_API_DISCOVERY_URL": f"http://{address}/discovery",
            "no_proxy": "127.0.0.1",
        }
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
