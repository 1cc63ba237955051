"""Imports point left only.

core <- models, data, runs <- compute <- engines <- cluster <- training <- jobs <- serving <- sites, experiments <- cli
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import tdcd

PACKAGE = Path(tdcd.__file__).parent
BASE = {"errors", "files", "malloc", "registry", "strict", "summary"}
BELOW: dict[str, set[str]] = {
    "core": {"errors"},
    "models": BASE | {"core"},
    "data": BASE | {"core"},
    "runs": BASE | {"core"},
    "compute": {"errors", "core", "models", "data"},
    "engines": {"errors", "core", "models", "data", "compute"},
    "cluster": {"errors", "core", "models", "data", "compute", "engines"},
    "training": BASE | {"theory", "core", "models", "data", "runs", "compute", "engines", "cluster"},
    "jobs": BASE | {"core", "models", "data", "runs", "compute", "engines", "cluster", "training"},
    "serving": BASE | {"core", "models", "data", "runs", "compute", "training", "jobs"},
    "sites": BASE | {"core", "models", "data", "runs", "compute", "engines", "training", "jobs", "serving"},
    "experiments": BASE
    | {"costs", "core", "models", "data", "runs", "compute", "engines", "cluster", "training", "jobs"},
    "reports": BASE | {"costs", "core", "runs"},
    "cli": BASE
    | {"costs", "core", "models", "data", "runs", "compute", "engines", "cluster", "training", "jobs", "sites"}
    | {"serving", "experiments", "reports"},
}
OUTSIDE_CORE = {
    "pydantic",
    "typer",
    "rich",
    "sklearn",
    "matplotlib",
    "jinja2",
    "safetensors",
    "polars",
    "grpc",
    "ray",
    "nacl",
}


def imports(path: Path) -> set[str]:
    result = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module
            result.add(node.module)
    return result


def test_every_layer_imports_only_layers_below_it() -> None:
    layers = {folder.name for folder in PACKAGE.iterdir() if folder.is_dir() and folder.name != "__pycache__"}
    assert layers == set(BELOW)
    for layer, below in BELOW.items():
        for path in (PACKAGE / layer).rglob("*.py"):
            for name in imports(path):
                assert name != "tdcd" or layer == "cli", f"{path.relative_to(PACKAGE)} imports the public interface"
                if name.startswith("tdcd."):
                    assert name.split(".")[1] in below | {layer}, f"{path.relative_to(PACKAGE)} imports {name}"


def module_name(path: Path) -> str:
    return ".".join(("tdcd", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports inside functions, and for types only, do not count: they are done later, or never."""
    modules = {module_name(path): path for path in PACKAGE.rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        graph[name] = set()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                wanted = {f"{node.module}.{alias.name}" for alias in node.names}
                graph[name] |= {one if one in modules else node.module for one in wanted} & (set(modules) - {name})
    while free := {name for name, below in graph.items() if not below & set(graph)}:
        graph = {name: below for name, below in graph.items() if name not in free}
    assert not graph, f"these import each other: {sorted(graph)}"


def test_the_mathematics_needs_torch_and_numpy_only() -> None:
    for path in (PACKAGE / "core").rglob("*.py"):
        tops = {name.split(".")[0] for name in imports(path)}
        assert not tops & OUTSIDE_CORE, path


def test_one_module_knows_grpc_and_protobuf() -> None:
    known = {PACKAGE / "sites" / "transport" / "grpc.py", *(PACKAGE / "sites" / "transport" / "wire").glob("*.py")}
    for path in set(PACKAGE.rglob("*.py")) - known:
        strange = {name for name in imports(path) if re.match(r"grpc|google|tdcd\.sites\.transport\.wire", name)}
        assert not strange, path


def test_two_modules_know_ray() -> None:
    known = {PACKAGE / "cluster" / name for name in ("ray_session.py", "ray_fleet.py")}
    for path in set(PACKAGE.rglob("*.py")) - known:
        assert "ray" not in {name.split(".")[0] for name in imports(path)}, path


def test_one_package_knows_onnx() -> None:
    for path in set(PACKAGE.rglob("*.py")) - set((PACKAGE / "serving" / "export").glob("*.py")):
        assert not {name.split(".")[0] for name in imports(path)} & {"onnx", "onnxscript", "onnxruntime"}, path


def test_only_the_server_knows_the_web() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path.parent != PACKAGE / "serving" / "http":
            assert not {name.split(".")[0] for name in imports(path)} & {"starlette", "uvicorn"}, path


def loaded_by(module: str) -> set[str]:
    """Return the packages that a process has loaded once it has imported a module."""
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_sites_load_what_they_need_only() -> None:
    """Hubs and clients start often, at small machines."""
    for module in ("tdcd.sites.hub.main", "tdcd.sites.client.main"):
        assert not loaded_by(module) & {"matplotlib", "jinja2", "sklearn", "PIL", "polars"}, module


def test_nothing_is_unpickled() -> None:
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert not {name.split(".")[0] for name in imports(path)} & {"pickle", "cloudpickle", "shelve", "marshal"}, path
        assert not re.search(r"torch\.load\b|from torch import .*\bload\b|weights_only", text), path
        assert "allow_pickle=True" not in text, path


def test_the_command_line_starts_without_torch() -> None:
    """`tdcd --help` should not wait for a deep-learning framework."""
    code = "import sys, tdcd.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
