"""Attacks that reach out of the box: files, environment, network, other programs and processes."""

from .snippet import Kind, Snippet, written

FILES = [
    Snippet(
        "read_file_by_every_door",
        Kind.FILES,
        written("""
        def metric(input, output, metadata):
            path = input["canary"]
            def by_descriptor():
                import os
                return os.read(os.open(path, os.O_RDONLY), 64)
            def by_raw_io():
                import io
                return io.FileIO(path).read(64)
            def by_open_code():
                import _io
                return _io.open_code(path).read(64)
            def by_codecs():
                import codecs
                return codecs.open(path, encoding="latin-1").read(64)
            def by_path():
                import pathlib
                return pathlib.Path(path).read_bytes()
            def by_linecache():
                import linecache
                return linecache.getline(path, 1)
            def by_tokenize():
                import tokenize
                return tokenize.open(path).read()
            def by_posix():
                import posix
                return posix.read(posix.open(path, 0), 64)
            def by_loader():
                import _frozen_importlib_external
                return _frozen_importlib_external.FileLoader("x", path).get_data(path)
            def by_fileinput():
                import fileinput
                return next(fileinput.input([path]))
            return tried({
                "open": lambda: open(path).read(64), "descriptor": by_descriptor, "raw": by_raw_io,
                "open_code": by_open_code, "codecs": by_codecs, "path": by_path, "linecache": by_linecache,
                "tokenize": by_tokenize, "posix": by_posix, "loader": by_loader, "fileinput": by_fileinput,
            })
        """),
    ),
    Snippet(
        "read_file_with_open_alone",
        Kind.FILES,
        written("""
        def metric(input, output, metadata):
            raise ValueError(open(input["canary"]).read())
        """),
    ),
    Snippet(
        "read_file_with_pathlib_alone",
        Kind.FILES,
        written("""
        from pathlib import Path

        def metric(input, output, metadata):
            raise ValueError(Path(input["canary"]).read_text())
        """),
    ),
    Snippet(
        "read_file_while_loading",
        Kind.FILES,
        # The code runs once as a module before metric() is called: the walls must already stand then.
        written("""
        try:
            FOUND = open("/etc/passwd").read(64)
        except Exception:
            FOUND = ""

        def metric(input, output, metadata, passwd=FOUND):
            return {"passwd": number(passwd)}
        """),
    ),
    Snippet(
        "read_well_known_files",
        Kind.FILES,
        written("""
        def metric(input, output, metadata):
            def reader(path):
                return lambda: 1 + len(open(path, "rb").read(64))
            paths = ["/etc/passwd", "/etc/hostname", "/etc/ld.so.cache", "/dev/null", "/dev/zero", "/dev/urandom",
                     "/dev/mem", "/dev/kmsg", "/sys/kernel/notes", "/etc/../etc/passwd", "//etc//passwd"]
            return tried({path: reader(path) for path in paths})
        """),
    ),
    Snippet(
        "read_relative_paths",
        Kind.FILES,
        written("""
        def metric(input, output, metadata):
            def reader(path):
                return lambda: open(path, "rb").read(64)
            up = "../" * 12
            paths = ["pyproject.toml", "README.md", ".", "etc/passwd", up + "etc/passwd", up + input["canary"][1:]]
            return tried({path: reader(path) for path in paths})
        """),
    ),
    Snippet(
        "read_file_below_an_open_folder",
        Kind.FILES,
        written("""
        def metric(input, output, metadata):
            import os
            def below(fd):
                def read():
                    return os.read(os.open(input["canary"][1:], os.O_RDONLY, dir_fd=fd), 64)
                return read
            return tried({f"fd{fd}": below(fd) for fd in range(40)})
        """),
    ),
    Snippet(
        "list_folders",
        Kind.FILES,
        written("""
        def metric(input, output, metadata):
            import os
            def by_path():
                import pathlib
                return len(list(pathlib.Path("/").iterdir()))
            def by_glob():
                import glob
                return len(glob.glob("/*"))
            def by_walk():
                return len(next(iter(os.walk("/")))[1])
            return tried({
                "listdir": lambda: len(os.listdir("/")), "scandir": lambda: len(list(os.scandir("/"))),
                "here": lambda: len(os.listdir(".")), "folder": lambda: 1 + len(os.listdir(input["folder"])),
                "path": by_path, "glob": by_glob, "walk": by_walk, "fd": lambda: len(os.listdir(0)),
            })
        """),
    ),
    Snippet(
        "list_a_folder_with_pathlib_alone",
        Kind.FILES,
        written("""
        from pathlib import Path

        def metric(input, output, metadata):
            return {"entries": len(list(Path("/").iterdir()))}
        """),
    ),
    Snippet(
        "ask_whether_a_file_exists",
        Kind.FILES,
        written("""
        def metric(input, output, metadata):
            import os
            path = input["canary"]
            def by_path():
                import pathlib
                return pathlib.Path(path).exists()
            return tried({
                "stat": lambda: os.stat(path).st_size, "lstat": lambda: os.lstat(path).st_size,
                "exists": lambda: os.path.exists(path), "access": lambda: os.access(path, os.R_OK),
                "statvfs": lambda: os.statvfs("/").f_bsize, "xattr": lambda: 1 + len(os.listxattr(path)),
                "readlink": lambda: os.readlink("/proc/self/exe"), "realpath": lambda: os.readlink("/bin"),
                "path": by_path,
            })
        """),
    ),
    Snippet(
        "import_a_planted_module",
        Kind.FILES,
        written("""
        def metric(input, output, metadata):
            import sys
            def by_path():
                sys.path.insert(0, input["planted"])
                return __import__(input["module"]).SECRET
            def by_spec():
                import importlib.util
                spec = importlib.util.spec_from_file_location("x", input["planted"] + "/" + input["module"] + ".py")
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                return module.SECRET
            def by_runpy():
                import runpy
                return runpy.run_path(input["planted"] + "/" + input["module"] + ".py")["SECRET"]
            return tried({"path": by_path, "spec": by_spec, "runpy": by_runpy})
        """),
    ),
    Snippet(
        "read_file_through_libraries",
        Kind.FILES,
        written("""
        def metric(input, output, metadata):
            path = input["canary"]
            def by_numpy():
                import numpy
                return numpy.fromfile(path, dtype="u1", count=6).tobytes()
            def by_memmap():
                import numpy
                return numpy.memmap(path, dtype="u1", mode="r")[:6].tobytes()
            def by_sqlite():
                import sqlite3
                return sqlite3.connect("file:" + path + "?mode=ro", uri=True).execute("select 1").fetchone()[0]
            def by_url():
                import urllib.request
                return urllib.request.urlopen("file://" + path).read()
            def by_config():
                import configparser
                return len(configparser.ConfigParser().read(path))
            def by_traceback():
                code = compile("raise ValueError", path, "exec")
                import traceback
                try:
                    exec(code)
                except ValueError:
                    return after(traceback.format_exc(), input["mark"])
            def by_ssl():
                import ssl
                return ssl.create_default_context().load_verify_locations(path) is None
            return tried({"numpy": by_numpy, "memmap": by_memmap, "sqlite": by_sqlite, "url": by_url,
                          "config": by_config, "traceback": by_traceback, "ssl": by_ssl})
        """),
    ),
]

ENVIRONMENT = [
    Snippet(
        "read_environment_by_every_door",
        Kind.ENVIRONMENT,
        written("""
        def metric(input, output, metadata):
            import os
            name = input["token"]
            def by_posix():
                import posix
                return posix.environ[name.encode()]
            def by_path():
                return os.path.expandvars("$" + name)
            def by_home():
                return after(os.path.expanduser("~"), input["mark"])
            return tried({
                "environ": lambda: after(os.environ[name], input["mark"]), "getenv": lambda: os.getenv(name),
                "bytes": lambda: os.environb[name.encode()], "posix": by_posix,
                "expand": lambda: after(by_path(), input["mark"]), "home": by_home,
            })
        """),
    ),
    Snippet(
        "read_environment_with_getenv_alone",
        Kind.ENVIRONMENT,
        written("""
        import os

        def metric(input, output, metadata):
            return {"token": number(os.getenv(input["token"]))}
        """),
    ),
    Snippet(
        "read_whole_environment_alone",
        Kind.ENVIRONMENT,
        written("""
        import os

        def metric(input, output, metadata):
            raise ValueError(str(dict(os.environ)))
        """),
    ),
    Snippet(
        "read_environment_in_libc",
        Kind.ENVIRONMENT,
        written(
            """
        def metric(input, output, metadata):
            ctypes, libc, call = caller()
            libc.getenv.restype = ctypes.c_char_p
            def by_pointer():
                block = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
                at = 0
                while block[at]:
                    if after(block[at], input["mark"]):
                        return after(block[at], input["mark"])
                    at += 1
            return tried({"getenv": lambda: libc.getenv(input["token"].encode()), "pointer": by_pointer})
        """,
            native=True,
        ),
    ),
    Snippet(
        "read_how_the_worker_was_started",
        Kind.ENVIRONMENT,
        written("""
        def metric(input, output, metadata):
            import sys
            said = repr([getattr(sys, name, None) for name in ("argv", "orig_argv", "_xoptions", "path", "flags")])
            return {"found": number(after(said, input["mark"]))}
        """),
    ),
]

PROC = [
    Snippet(
        "read_proc_of_self",
        Kind.PROC,
        written("""
        def metric(input, output, metadata):
            def reader(name):
                def read():
                    found = open("/proc/" + name, "rb").read(65536)
                    return after(found, input["mark"]) or found
                return read
            names = ["environ", "maps", "cmdline", "status", "stat", "auxv", "mountinfo", "cgroup", "task", "exe"]
            ways = {name: reader("self/" + name) for name in names}
            ways["thread"] = reader("thread-self/environ")
            ways["version"] = reader("version")
            return tried(ways)
        """),
    ),
    Snippet(
        "read_proc_of_parent",
        Kind.PROC,
        written("""
        def metric(input, output, metadata):
            import os
            def reader(path):
                def read():
                    found = open(path, "rb").read(65536)
                    return after(found, input["mark"]) or found
                return read
            ways = {}
            for pid in (input["parent"], os.getppid(), input["decoy"]):
                for name in ("environ", "cmdline", "maps", "status"):
                    ways[f"{pid}_{name}"] = reader(f"/proc/{pid}/{name}")
                ways[f"{pid}_fd"] = lambda pid=pid: len(os.listdir(f"/proc/{pid}/fd"))
                ways[f"{pid}_root"] = reader(f"/proc/{pid}/root" + input["canary"])
                ways[f"{pid}_cwd"] = lambda pid=pid: os.readlink(f"/proc/{pid}/cwd")
            return tried(ways)
        """),
    ),
    Snippet(
        "read_memory_of_parent",
        Kind.PROC,
        written("""
        def metric(input, output, metadata):
            import os, re
            def scan(pid):
                memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
                for line in open(f"/proc/{pid}/maps"):
                    first, last = (int(side, 16) for side in line.split()[0].split("-"))
                    if "rw" not in line or last - first > 1 << 26:
                        continue
                    found = after(os.pread(memory, last - first, first), input["mark"])
                    if found:
                        return found
            return tried({"parent": lambda: scan(input["parent"]), "mother": lambda: scan(os.getppid())})
        """),
    ),
    Snippet(
        "write_memory_of_parent",
        Kind.PROC,
        written("""
        def metric(input, output, metadata):
            def poke(name, text):
                with open(f"/proc/{input['parent']}/{name}", "r+b", buffering=0) as file:
                    return file.write(text)
            return tried({
                "mem": lambda: poke("mem", b"x"), "oom": lambda: poke("oom_score_adj", b"1000"),
                "comm": lambda: poke("comm", b"owned"), "refs": lambda: poke("clear_refs", b"1"),
                "self": lambda: open("/proc/self/comm", "wb", buffering=0).write(b"owned"),
            })
        """),
    ),
]

WRITING = [
    Snippet(
        "write_into_a_folder_by_every_door",
        Kind.WRITING,
        written("""
        def metric(input, output, metadata):
            import os
            base = input["folder"] + "/"
            def by_path():
                import pathlib
                return pathlib.Path(base + "path").write_text("x")
            def by_temporary():
                import tempfile
                return tempfile.mkstemp(dir=base)[0]
            def by_sqlite():
                import sqlite3
                base_connection = sqlite3.connect(base + "sqlite")
                base_connection.execute("create table t (x)")
                return 1
            def by_logging():
                import logging
                return logging.FileHandler(base + "log") is not None
            def by_numpy():
                import numpy
                numpy.arange(3).tofile(base + "numpy")
                return 1
            def by_shutil():
                import shutil
                return shutil.copyfile(input["canary"], base + "copy")
            def made(call, *arguments):
                return lambda: call(*arguments) is None
            return tried({
                "open": lambda: open(base + "open", "w").write("x"),
                "descriptor": lambda: os.open(base + "descriptor", os.O_CREAT | os.O_WRONLY, 0o666),
                "nameless": lambda: os.open(base, os.O_TMPFILE | os.O_WRONLY, 0o666),
                "mkdir": made(os.mkdir, base + "mkdir"), "mkfifo": made(os.mkfifo, base + "mkfifo"),
                "mknod": made(os.mknod, base + "mknod"), "symlink": made(os.symlink, "/", base + "symlink"),
                "link": made(os.link, input["canary"], base + "link"),
                "makedirs": made(os.makedirs, base + "a/b"), "path": by_path, "temporary": by_temporary,
                "sqlite": by_sqlite, "logging": by_logging, "numpy": by_numpy, "shutil": by_shutil,
            })
        """),
    ),
    Snippet(
        "write_with_open_alone",
        Kind.WRITING,
        written("""
        def metric(input, output, metadata):
            with open(input["folder"] + "/alone", "w") as file:
                file.write("x")
            return {"written": 1}
        """),
    ),
    Snippet(
        "write_with_pathlib_alone",
        Kind.WRITING,
        written("""
        from pathlib import Path

        def metric(input, output, metadata):
            Path(input["folder"] + "/path").write_text("x")
            return {"written": 1}
        """),
    ),
    Snippet(
        "change_a_file",
        Kind.WRITING,
        written("""
        def metric(input, output, metadata):
            import os
            path = input["ledger"]
            def done(call, *arguments):
                return lambda: call(*arguments) is None
            return tried({
                "append": lambda: open(path, "a").write("x"), "update": lambda: open(path, "r+").write("x"),
                "truncate": done(os.truncate, path, 1), "chmod": done(os.chmod, path, 0o600),
                "utime": done(os.utime, path, (1, 1)), "chown": done(os.chown, path, 65534, 65534),
                "xattr": done(os.setxattr, path, "user.x", b"x"), "rename": done(os.rename, path, path + "x"),
                "replace": done(os.replace, path, path + "x"), "unlink": done(os.unlink, path),
            })
        """),
    ),
    Snippet(
        "write_into_usual_places",
        Kind.WRITING,
        written("""
        def metric(input, output, metadata):
            def writer(folder):
                return lambda: open(folder + input["name"], "w").write("x")
            return tried({folder: writer(folder) for folder in ("", "./", "/tmp/", "/dev/shm/", "/var/tmp/", "/run/")})
        """),
    ),
    Snippet(
        "write_shared_memory",
        Kind.WRITING,
        written("""
        def metric(input, output, metadata):
            import os
            def by_shm():
                import _posixshmem
                return 1 + _posixshmem.shm_open("/" + input["name"], os.O_CREAT | os.O_RDWR, 0o666)
            def by_shared():
                from multiprocessing import shared_memory
                return shared_memory.SharedMemory(input["name"], create=True, size=4096).size
            def by_lock():
                import _multiprocessing
                return _multiprocessing.SemLock(1, 1, 1, "/" + input["name"], False) is not None
            def by_memory_file():
                return 1 + os.memfd_create("x")
            return tried({"shm": by_shm, "shared": by_shared, "lock": by_lock, "memory_file": by_memory_file})
        """),
    ),
]

NETWORK = [
    Snippet(
        "connect_by_tcp",
        Kind.TCP,
        written("""
        def metric(input, output, metadata):
            def by_socket():
                import socket
                return socket.create_connection(("127.0.0.1", input["tcp"]), 1).send(b"hello")
            def by_core():
                import _socket
                talk = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
                return 1 + talk.connect_ex(("127.0.0.1", input["tcp"]))
            def by_fast_open():
                import socket
                talk = socket.socket()
                return talk.sendto(b"hello", 0x20000000, ("127.0.0.1", input["tcp"]))
            def by_url():
                import urllib.request
                return urllib.request.urlopen(f"http://127.0.0.1:{input['tcp']}/", timeout=0.2).status
            def by_http():
                import http.client
                return http.client.HTTPConnection("127.0.0.1", input["tcp"], timeout=0.2).connect() is None
            def by_asyncio():
                import asyncio
                async def go():
                    await asyncio.open_connection("127.0.0.1", input["tcp"])
                    return 1
                return asyncio.run(go())
            return tried({"socket": by_socket, "core": by_core, "fast_open": by_fast_open, "url": by_url,
                          "http": by_http, "asyncio": by_asyncio})
        """),
    ),
    Snippet(
        "listen_by_tcp",
        Kind.TCP,
        written("""
        def metric(input, output, metadata):
            def listening():
                import socket
                door = socket.socket()
                door.bind(("127.0.0.1", 0))
                door.listen()
                return door.getsockname()[1]
            def served():
                import asyncio
                async def go():
                    server = await asyncio.start_server(print, "127.0.0.1", 0)
                    return server.sockets[0].getsockname()[1]
                return asyncio.run(go())
            return tried({"socket": listening, "asyncio": served})
        """),
    ),
    Snippet(
        "send_by_udp",
        Kind.UDP,
        written("""
        def metric(input, output, metadata):
            def by_socket():
                import socket
                return socket.socket(type=socket.SOCK_DGRAM).sendto(b"hello", ("127.0.0.1", input["udp"]))
            def by_connected():
                import _socket
                talk = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
                talk.connect(("127.0.0.1", input["udp"]))
                return talk.send(b"hello")
            def by_syslog():
                import logging.handlers
                logging.handlers.SysLogHandler(("127.0.0.1", input["udp"])).emit(
                    logging.LogRecord("x", 50, "x", 1, "x", (), None))
                return 1
            def by_name():
                import socket
                return len(socket.getaddrinfo("localhost", 80))
            return tried({"socket": by_socket, "connected": by_connected, "syslog": by_syslog, "name": by_name})
        """),
    ),
    Snippet(
        "connect_by_unix_socket",
        Kind.UNIX_SOCKET,
        written("""
        def metric(input, output, metadata):
            import socket
            def connected(address):
                def connect():
                    talk = socket.socket(socket.AF_UNIX)
                    talk.connect(address)
                    return talk.send(b"hello")
                return connect
            def thrown():
                return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"hello", input["unix_datagram"])
            return tried({"stream": connected(input["unix"]), "abstract": connected("\\0" + input["abstract"]),
                          "datagram": thrown, "pair": lambda: len(socket.socketpair())})
        """),
    ),
    Snippet(
        "open_strange_sockets",
        Kind.UNIX_SOCKET,
        written("""
        def metric(input, output, metadata):
            import socket
            def opened(family, kind, protocol):
                return lambda: 1 + socket.socket(family, kind, protocol).fileno()
            families = {"inet": 2, "inet6": 10, "netlink": 16, "packet": 17, "bluetooth": 31, "alg": 38, "vsock": 40}
            return tried({f"{name}_{kind}": opened(family, kind, 0)
                          for name, family in families.items() for kind in (1, 2, 3, 5)})
        """),
    ),
]

PROGRAMS = [
    Snippet(
        "run_a_program_by_every_door",
        Kind.PROGRAMS,
        written("""
        def metric(input, output, metadata):
            import os
            def touch(name):
                return ["/bin/sh", "-c", f"echo x > {input['folder']}/{name}"]
            def by_popen():
                return os.popen("cat " + input["canary"]).read()
            def by_subprocess():
                import subprocess
                return subprocess.check_output(["/bin/cat", input["canary"]], timeout=0.3)
            def by_core():
                import _posixsubprocess
                return _posixsubprocess.fork_exec(touch("core"), [b"/bin/sh"], True, (), None, None, -1, -1, -1, -1,
                                                  -1, -1, -1, -1, False, False, -1, None, None, None, -1, None, True)
            def by_asyncio():
                import asyncio
                async def go():
                    child = await asyncio.create_subprocess_exec(*touch("asyncio"))
                    return child.pid
                return asyncio.run(go())
            def by_terminal():
                import pty
                return pty.spawn(touch("terminal")) == 0
            def by_pool():
                import multiprocessing
                return multiprocessing.get_context("spawn").Pool(1) is not None
            return tried({
                "system": lambda: os.system(touch("system")[2]) == 0, "popen": by_popen, "subprocess": by_subprocess,
                "posix_spawn": lambda: os.posix_spawn("/bin/sh", touch("posix_spawn"), {}),
                "posix_spawnp": lambda: os.posix_spawnp("sh", touch("posix_spawnp"), {}),
                "spawnv": lambda: os.spawnv(os.P_NOWAIT, "/bin/sh", touch("spawnv")),
                "core": by_core, "asyncio": by_asyncio, "terminal": by_terminal, "pool": by_pool,
            })
        """),
        timeout_ms=2_000,
    ),
    Snippet(
        "run_a_program_with_system_alone",
        Kind.PROGRAMS,
        written("""
        import os

        def metric(input, output, metadata):
            return {"ran": int(os.system(f"touch {input['folder']}/system") == 0)}
        """),
    ),
    Snippet(
        "become_another_program",
        Kind.PROGRAMS,
        written("""
        def metric(input, output, metadata):
            import os
            os.execv("/bin/sh", ["/bin/sh", "-c", f"echo x > {input['folder']}/exec; sleep 5"])
        """),
        timeout_ms=500,
    ),
    Snippet(
        "become_a_program_in_memory",
        Kind.PROGRAMS,
        written("""
        def metric(input, output, metadata):
            import os
            held = os.memfd_create("x", 0)
            os.write(held, f"#!/bin/sh\\necho x > {input['folder']}/memory".encode())
            os.execve(held, ["x"], {})
        """),
    ),
]

KILLING = [
    # Signals that would end anything go to the harness, its own group and its decoy only; wider ones are SIGURG,
    # which the harness counts and everyone else ignores.
    Snippet(
        "kill_the_parent",
        Kind.KILL,
        written("""
        def metric(input, output, metadata):
            import os, signal
            mother = os.getppid()
            targets = {"parent": input["parent"], "decoy": input["decoy"]}
            if mother > 1:
                targets["mother"] = mother
            def sent(pid, number):
                return lambda: os.kill(pid, number) is None
            ways = {}
            for number in (signal.SIGURG, signal.SIGTERM, signal.SIGKILL):
                for name, pid in targets.items():
                    ways[f"{name}_{int(number)}"] = sent(pid, number)
            return tried(ways)
        """),
    ),
    Snippet(
        "kill_the_process_group",
        Kind.KILL,
        written("""
        def metric(input, output, metadata):
            import os, signal
            return tried({
                "group_of_parent": lambda: os.killpg(input["parent"], signal.SIGTERM) is None,
                "own_group": lambda: os.killpg(os.getpgrp(), signal.SIGURG) is None,
                "zero": lambda: os.kill(0, signal.SIGURG) is None,
            })
        """),
    ),
    Snippet(
        "signal_everyone",
        Kind.KILL,
        written("""
        def metric(input, output, metadata):
            import os, signal
            return tried({
                "everyone": lambda: os.kill(-1, signal.SIGURG) is None,
                "init": lambda: os.kill(1, signal.SIGURG) is None, "init_known": lambda: os.kill(1, 0) is None,
            })
        """),
    ),
    Snippet(
        "signal_through_a_process_descriptor",
        Kind.KILL,
        written("""
        def metric(input, output, metadata):
            import os, signal
            def send():
                return signal.pidfd_send_signal(os.pidfd_open(input["parent"]), signal.SIGTERM) is None
            return tried({"open": lambda: 1 + os.pidfd_open(input["parent"]), "send": send})
        """),
    ),
    Snippet(
        "push_the_parent_around",
        Kind.KILL,
        written("""
        def metric(input, output, metadata):
            import os
            parent = input["parent"]
            def limit():
                import resource
                resource.prlimit(parent, resource.RLIMIT_NOFILE, (3, 3))
                return 1
            def done(call, *arguments):
                return lambda: call(*arguments) is None
            return tried({
                "limit": limit, "nice": done(os.setpriority, os.PRIO_PROCESS, parent, 19),
                "nice_group": done(os.setpriority, os.PRIO_PGRP, parent, 19),
                "affinity": done(os.sched_setaffinity, parent, {0}),
                "scheduler": done(os.sched_setscheduler, parent, os.SCHED_IDLE, os.sched_param(0)),
                "group": done(os.setpgid, parent, parent),
            })
        """),
    ),
    Snippet(
        "trace_the_parent",
        Kind.KILL,
        written(
            """
        def metric(input, output, metadata):
            ctypes, libc, call = caller()
            parent = input["parent"]
            room = ctypes.create_string_buffer(64)
            class Vector(ctypes.Structure):
                _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
            near = Vector(ctypes.addressof(room), 64)
            far = Vector(id(parent), 64)
            seize, interrupt = 0x4206, 0x4207
            def done(number, *arguments):
                return lambda: call(number, *arguments) >= 0
            return tried({
                "seize": done(numbered(101, 117), seize, parent, 0, 0),
                "attach_mother": done(numbered(101, 117), seize, libc.getppid(), 0, 0),
                "me": done(numbered(101, 117), 0, 0, 0, 0),
                "read": done(numbered(310, 270), parent, ctypes.byref(near), 1, ctypes.byref(far), 1, 0),
                "write": done(numbered(311, 271), parent, ctypes.byref(near), 0, ctypes.byref(far), 0, 0),
                "getfd": done(438, call(434, parent, 0), 2, 0), "pidfd": done(434, parent, 0),
                "compare": done(numbered(312, 272), parent, libc.getpid(), 2, 0, 0),
            })
        """,
            native=True,
        ),
    ),
]

SNIPPETS = [*FILES, *ENVIRONMENT, *PROC, *WRITING, *NETWORK, *PROGRAMS, *KILLING]
