"""Attacks that break the box from inside: native code, forks, threads, object walks, descriptors, bad bytecode."""

from .snippet import Kind, Snippet, written

NATIVE = [
    Snippet(
        "call_libc",
        Kind.CTYPES,
        written(
            """
        def metric(input, output, metadata):
            ctypes, libc, call = caller()
            room = ctypes.create_string_buffer(64)
            def by_open():
                libc.read(libc.open(input["canary"].encode(), 0), room, 64)
                return room.value
            def by_stream():
                libc.fopen.restype = ctypes.c_void_p
                libc.fgets(room, 64, ctypes.c_void_p(libc.fopen(input["canary"].encode(), b"r")))
                return room.value
            return tried({
                "open": by_open, "stream": by_stream,
                "system": lambda: libc.system(f"touch {input['folder']}/libc".encode()) == 0,
                "creat": lambda: 1 + libc.creat(f"{input['folder']}/creat".encode(), 0o666),
            })
        """,
            native=True,
        ),
    ),
    Snippet(
        "open_by_raw_system_calls",
        Kind.CTYPES,
        written(
            """
        def metric(input, output, metadata):
            ctypes, libc, call = caller()
            path, here = input["canary"].encode(), -100
            how = (ctypes.c_uint64 * 3)(0, 0, 0)
            room = ctypes.create_string_buffer(64)
            def read(handle):
                if handle < 0:
                    return 0
                call(numbered(0, 63), handle, room, 64)
                return room.value or 1
            x32 = 0x40000000
            return tried({
                "open": lambda: read(call(numbered(2, 9999), path, 0, 0)),
                "openat": lambda: read(call(numbered(257, 56), here, path, 0, 0)),
                "openat2": lambda: read(call(437, here, path, ctypes.byref(how), 24)),
                "path_only": lambda: 1 + call(numbered(257, 56), here, path, 0o10000000, 0),
                "x32_open": lambda: read(call(numbered(x32 + 2, 9999), path, 0, 0)),
                "x32_openat": lambda: read(call(numbered(x32 + 257, 9999), here, path, 0, 0)),
                "by_handle": lambda: call(numbered(303, 264), here, path, room, room, 0) == 0,
                "tree": lambda: 1 + call(428, here, path, 0),
                "creat": lambda: 1 + call(numbered(85, 9999), f"{input['folder']}/raw".encode(), 0o666),
                "statx": lambda: call(numbered(332, 291), here, path, 0, 0xFFF, ctypes.create_string_buffer(256)) == 0,
            })
        """,
            native=True,
        ),
    ),
    Snippet(
        "strange_system_calls",
        Kind.CTYPES,
        # Each of these has been a way around a filter, or a way into a kernel.
        written(
            """
        def metric(input, output, metadata):
            ctypes, libc, call = caller()
            room = ctypes.create_string_buffer(4096)
            calls = {
                "io_uring_setup": (425, 425, 4, room), "io_setup": (206, 0, 4, room), "userfaultfd": (323, 282, 0),
                "bpf": (321, 280, 0, room, 64), "perf_event_open": (298, 241, room, 0, -1, -1, 0),
                "memfd_create": (319, 279, b"x", 0), "unshare": (272, 97, 0x10000000), "setns": (308, 268, 0, 0),
                "keyctl": (250, 219, 0, -3, 1), "add_key": (248, 217, b"user", b"x", b"x", 1, -3),
                "inotify": (294, 26, 0), "fanotify": (300, 262, 0, 0), "eventfd": (290, 19, 0, 0),
                "signalfd": (289, 74, -1, room, 8, 0), "timerfd": (283, 85, 0, 0), "epoll": (291, 20, 0),
                "shmget": (29, 194, 0, 4096, 0o1666), "msgget": (68, 186, 0, 0o1666), "semget": (64, 190, 0, 1, 0o1666),
                "mq_open": (240, 180, b"meruit-fault", 0o102, 0o600, 0), "socket": (41, 198, 2, 1, 0),
                "socketpair": (53, 199, 1, 1, 0, room), "personality": (135, 92, 0x0400000), "chroot": (161, 51, b"/"),
                "mount": (165, 40, b"x", input["folder"].encode(), b"tmpfs", 0, 0), "seccomp": (317, 277, 2, 0, room),
                "prctl_dumpable": (157, 167, 4, 1, 0, 0, 0), "prctl_deathsig": (157, 167, 1, 0, 0, 0, 0),
                "setuid": (105, 146, 0), "setresuid": (117, 147, 0, 0, 0),
                "capset": (126, 91, room, room), "landlock": (444, 444, 0, 0, 1), "pidfd_open": (434, 434, 1, 0),
                "memfd_secret": (447, 447, 0), "mseal": (462, 462, 0, 0, 0), "modify_ldt": (154, 9999, 0, room, 8),
                "arch_prctl": (158, 9999, 0x1003, room), "iopl": (172, 9999, 3), "kexec": (246, 104, 0, 0, 0, -1),
                "process_madvise": (440, 440, -1, room, 1, 4, 0), "syslog": (103, 116, 10, 0, 0),
                "quotactl": (179, 60, 0, 0, 0, room), "swapoff": (168, 225, b"/nothing"),
                "acct": (163, 89, b"/nothing"),
            }
            # These two tell a process something about itself alone.
            quiet = {"arch_prctl", "mseal"}
            def done(name, intel, arm, *arguments):
                # A refusal is a negative answer; "no such file" would mean that the kernel did look.
                def go():
                    ctypes.set_errno(0)
                    answer = call(numbered(intel, arm), *arguments)
                    looked = ctypes.get_errno() in (2, 14, 17)
                    return (answer >= 0 or looked) and name not in quiet
                return go
            return tried({name: done(name, *how) for name, how in calls.items()})
        """,
            native=True,
        ),
    ),
    Snippet(
        "make_executable_memory",
        Kind.CTYPES,
        written(
            """
        def metric(input, output, metadata):
            ctypes, libc, call = caller()
            libc.mmap.restype = ctypes.c_void_p
            libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                                  ctypes.c_long]
            libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
            machine = numbered(b"\\xb8\\x2a\\x00\\x00\\x00\\xc3", b"\\x40\\x05\\x80\\x52\\xc0\\x03\\x5f\\xd6")
            failed = ctypes.c_void_p(-1).value
            def run(address):
                ctypes.memmove(address, machine, len(machine))
                return ctypes.CFUNCTYPE(ctypes.c_int)(address)()
            def at_once():
                address = libc.mmap(None, 4096, 7, 0x22, -1, 0)
                return 0 if address == failed else run(address)
            def later():
                address = libc.mmap(None, 4096, 3, 0x22, -1, 0)
                ctypes.memmove(address, machine, len(machine))
                if libc.mprotect(address, 4096, 5) != 0:
                    return 0
                return ctypes.CFUNCTYPE(ctypes.c_int)(address)()
            def by_key():
                address = libc.mmap(None, 4096, 3, 0x22, -1, 0)
                return call(numbered(329, 288), address, 4096, 7, -1) == 0
            def over_code():
                page = ctypes.cast(libc.getpid, ctypes.c_void_p).value & -4096
                return libc.mprotect(page, 4096, 7) == 0
            def by_module():
                import mmap
                return len(mmap.mmap(-1, 4096, prot=7))
            return tried({"at_once": at_once, "later": later, "by_key": by_key, "over_code": over_code,
                          "by_module": by_module})
        """,
            native=True,
        ),
    ),
    Snippet(
        "load_a_library",
        Kind.CTYPES,
        written(
            """
        def metric(input, output, metadata):
            import sys
            ctypes = native()
            # Libraries of every Linux that nothing has loaded yet.
            names = ["libthread_db.so.1", "libBrokenLocale.so.1", "libanl.so.1", "libnss_compat.so.2"]
            ways = {name: (lambda name=name: ctypes.CDLL(name)._name) for name in names}
            def by_import():
                import _testcapi
                return 1
            def by_machinery():
                import _imp, importlib.machinery
                spec = importlib.machinery.ModuleSpec("x", None, origin=input["canary"])
                return _imp.create_dynamic(spec) is not None
            def by_dlopen():
                sys.setdlopenflags(2)
                import readline
                return 1
            return tried({**ways, "import": by_import, "machinery": by_machinery, "dlopen": by_dlopen})
        """,
            native=True,
        ),
    ),
    Snippet(
        "poke_small_integers",
        Kind.CTYPES,
        # In a shared interpreter, 7 would be 8 for everyone from now on.
        written(
            """
        def metric(input, output, metadata):
            ctypes = native()
            for value in (7, 42):
                ctypes.memmove(id(value) + 24, id(value + 1) + 24, 4)
            return {"seven": 0}
        """,
            native=True,
        ),
    ),
    Snippet(
        "read_wild_memory_with_numpy",
        Kind.CTYPES,
        written("""
        def metric(input, output, metadata):
            import numpy
            here = numpy.zeros(64, dtype="u1")
            window = numpy.lib.stride_tricks.as_strided(here, shape=(1 << 22,), strides=(1,))
            return {"found": number(after(window.tobytes(), input["mark"]))}
        """),
    ),
]

PICKLES = [
    Snippet(
        "unpickle_a_command",
        Kind.PICKLE,
        written("""
        def metric(input, output, metadata):
            import pickle
            class Bomb:
                def __init__(self, call, *arguments):
                    self.how = (call, arguments)
                def __reduce__(self):
                    return self.how
            import os
            def loaded(*how):
                return lambda: pickle.loads(pickle.dumps(Bomb(*how))) in (0, None)
            return tried({
                "system": loaded(os.system, f"touch {input['folder']}/pickle"),
                "mkdir": loaded(os.mkdir, f"{input['folder']}/pickled"),
                "text": lambda: pickle.loads(f"cposix\\nsystem\\n(S'touch {input['folder']}/t'\\ntR.".encode()) == 0,
            })
        """),
    ),
    Snippet(
        "answer_a_pickle_bomb",
        Kind.PICKLE,
        written("""
        FOLDER = [""]

        class Bomb(float):
            def __reduce__(self):
                import os
                return os.mkdir, (FOLDER[0] + "/reduced",)

        def metric(input, output, metadata):
            FOLDER[0] = input["folder"]
            return {"bomb": Bomb(0.0)}
        """),
    ),
    Snippet(
        "raise_a_pickle_bomb",
        Kind.PICKLE,
        written("""
        def metric(input, output, metadata):
            class Bomb(Exception):
                def __reduce__(self):
                    import os
                    return os.mkdir, (input["folder"] + "/raised",)
            raise Bomb("boom")
        """),
        ends=frozenset({"crashed"}),
    ),
    Snippet(
        "send_a_pickle_bomb",
        Kind.PICKLE,
        # A host that unpickles what it reads from its worker runs the worker's code.
        written("""
        def metric(input, output, metadata):
            import os, struct
            bomb = b"cposix\\nmkdir\\n(S'" + input["folder"].encode() + b"/sent'\\ntR."
            for fd in range(3, 64):
                for head in (b"", *(struct.pack(how, len(bomb)) for how in (">I", "<I", "<Q"))):
                    try:
                        os.write(fd, head + bomb)
                    except OSError:
                        break
            return {"sent": 0}
        """),
    ),
    Snippet(
        "marshal_garbage",
        Kind.PICKLE,
        written("""
        def metric(input, output, metadata):
            import marshal
            return tried({f"garbage_{first}": (lambda first=first: marshal.loads(bytes([first]) + bytes(200)) and 0)
                          for first in b"\\xe3c([{<>z)u"})
        """),
    ),
]

FORKS = [
    # Bounded on purpose: where no wall stands they leave a few sleepers for a few seconds, not a dead machine.
    Snippet(
        "fork_bomb",
        Kind.FORK_BOMB,
        written("""
        def metric(input, output, metadata):
            import os, time
            made = 0
            for attempt in range(40):
                try:
                    if os.fork() == 0:
                        time.sleep(6)
                        os._exit(0)
                    made += 1
                except OSError:
                    pass
            return {"made": made}
        """),
    ),
    Snippet(
        "fork_by_other_names",
        Kind.FORK_BOMB,
        written(
            """
        def metric(input, output, metadata):
            import os, time
            def by_process():
                import multiprocessing
                child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(6,), daemon=True)
                child.start()
                return child.pid
            def by_terminal():
                child, terminal = os.forkpty()
                if child == 0:
                    time.sleep(6)
                    os._exit(0)
                return child
            def raw(intel, arm, *arguments):
                def go():
                    child = call(numbered(intel, arm), *arguments)
                    if child == 0:
                        time.sleep(6)
                        os._exit(0)
                    return child > 0
                return go
            ways = {"process": by_process, "terminal": by_terminal}
            try:
                ctypes, libc, call = caller()
                arguments = (ctypes.c_uint64 * 11)(0, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)
                ways["fork"] = raw(57, 9999)
                ways["clone"] = raw(56, 220, 17, 0, 0, 0, 0)
                ways["clone3"] = raw(435, 435, ctypes.byref(arguments), 88)
                ways["libc"] = lambda: (libc.fork() or (time.sleep(6), os._exit(0))) > 0
            except ImportError:
                pass
            return tried(ways)
        """,
            native=True,
        ),
    ),
    Snippet(
        "fork_and_answer_twice",
        Kind.FORK_BOMB,
        written("""
        def metric(input, output, metadata):
            import os
            return {"who": 0 if os.fork() else 0}
        """),
    ),
    Snippet(
        "start_threads",
        Kind.THREADS,
        written("""
        def metric(input, output, metadata):
            import time
            def by_core():
                import _thread
                return _thread.start_new_thread(time.sleep, (6,))
            def by_threading():
                import threading
                threading.Thread(target=time.sleep, args=(6,), daemon=True).start()
                return 1
            def by_pool():
                import concurrent.futures
                return concurrent.futures.ThreadPoolExecutor(4).submit(int, 1).result(0.2)
            def by_watchdog():
                import faulthandler
                faulthandler.dump_traceback_later(60)
                return 1
            def by_timer():
                import threading
                threading.Timer(0.01, print).start()
                return 1
            return tried({"core": by_core, "threading": by_threading, "pool": by_pool, "watchdog": by_watchdog,
                          "timer": by_timer})
        """),
    ),
    Snippet(
        "leave_a_busy_thread",
        Kind.THREADS,
        written("""
        def metric(input, output, metadata):
            import _thread
            def spin():
                while True:
                    pass
            for attempt in range(8):
                try:
                    _thread.start_new_thread(spin, ())
                except RuntimeError:
                    pass
            return {"left": 0}
        """),
    ),
    Snippet(
        "answer_from_a_thread",
        Kind.THREADS,
        written("""
        def metric(input, output, metadata):
            import _thread, os, time
            def shout():
                while True:
                    for fd in range(1, 32):
                        try:
                            os.write(fd, b'{"forged": 1}\\n')
                        except OSError:
                            pass
                    time.sleep(0.01)
            try:
                _thread.start_new_thread(shout, ())
            except RuntimeError:
                pass
            return {"quiet": 0}
        """),
    ),
    Snippet(
        "daemonise",
        Kind.DAEMON,
        written("""
        def metric(input, output, metadata):
            import os, time
            def linger():
                if os.fork():
                    return 1
                os.setsid()
                if os.fork():
                    os._exit(0)
                time.sleep(1.2)
                open(input["folder"] + "/daemon", "w").close()
                time.sleep(5)
                os._exit(0)
            return tried({"fork": linger, "setsid": lambda: os.setsid() is None,
                          "setpgrp": lambda: os.setpgrp() is None})
        """),
    ),
    Snippet(
        "daemonise_a_program",
        Kind.DAEMON,
        written("""
        def metric(input, output, metadata):
            import subprocess
            child = subprocess.Popen(["/bin/sh", "-c", "sleep 6"], start_new_session=True, close_fds=False)
            return {"pid": child.pid}
        """),
    ),
    Snippet(
        "outlive_by_asyncio",
        Kind.DAEMON,
        written("""
        import asyncio

        async def forever():
            while True:
                await asyncio.sleep(0)

        def metric(input, output, metadata):
            async def main():
                asyncio.create_task(forever())
                return 0
            return {"left": asyncio.run(main())}
        """),
        timeout_ms=500,
    ),
]

WALKS = [
    Snippet(
        "walk_subclasses",
        Kind.DUNDERS,
        written("""
        def metric(input, output, metadata):
            found = {}
            def opened(space):
                builtins = space.get("__builtins__")
                door = builtins["open"] if isinstance(builtins, dict) else builtins.open
                return door(input["canary"]).read(64)
            stack, seen = [().__class__.__base__], set()
            while stack and len(found) < 20:
                kind = stack.pop()
                for below in type.__subclasses__(kind):
                    if below in seen:
                        continue
                    seen.add(below)
                    stack.append(below)
                    for member in list(vars(below).values()):
                        space = getattr(member, "__globals__", None)
                        if space is None:
                            continue
                        try:
                            found[below.__name__] = number(opened(space))
                        except BaseException:
                            pass
                        for name in ("os", "sys", "posix", "subprocess"):
                            module = space.get(name)
                            try:
                                found[name] = number(module.popen("cat " + input["canary"]).read())
                            except BaseException:
                                pass
            return found
        """),
        timeout_ms=2_000,
    ),
    Snippet(
        "walk_loaders",
        Kind.DUNDERS,
        written("""
        def metric(input, output, metadata):
            kinds = {kind.__name__: kind for kind in ().__class__.__mro__[-1].__subclasses__()}
            def by_file():
                return kinds["FileLoader"]("x", input["canary"]).get_data(input["canary"])
            def by_builtin():
                posix = kinds["BuiltinImporter"].load_module("posix")
                return posix.read(posix.open(input["canary"], 0), 64)
            def by_close():
                return kinds["_wrap_close"].__init__.__globals__["popen"]("cat " + input["canary"]).read()
            def by_popen():
                return kinds["Popen"](["touch", input["folder"] + "/popen"]).pid
            return tried({"file": by_file, "builtin": by_builtin, "close": by_close, "popen": by_popen})
        """),
    ),
    Snippet(
        "reach_builtins_sideways",
        Kind.DUNDERS,
        written("""
        def metric(input, output, metadata):
            def by_function():
                return metric.__globals__["__builtins__"]["open"](input["canary"]).read()
            def by_method():
                return print.__self__.open(input["canary"]).read()
            def by_import():
                return __import__("o" + "s").popen("cat " + input["canary"]).read()
            def by_eval():
                return eval("open(p).read()", {"p": input["canary"]})
            def by_exec():
                space = {"p": input["canary"]}
                exec("x = open(p).read()", space)
                return space["x"]
            def by_type():
                return type("X", (), {"f": lambda self: open(input["canary"]).read()})().f()
            def by_getattr():
                return getattr(getattr(__builtins__, "__dict__", __builtins__), "get")("open")(input["canary"]).read()
            return tried({"function": by_function, "method": by_method, "import": by_import, "eval": by_eval,
                          "exec": by_exec, "type": by_type, "getattr": by_getattr})
        """),
    ),
    Snippet(
        "evaluate_text",
        Kind.DUNDERS,
        written("""
        def metric(input, output, metadata):
            found = 0
            for text in ("__import__('os').system('id')", "open('/etc/passwd').read()", "globals()", "().__class__",
                         "[x for x in ().__class__.__base__.__subclasses__()]", "eval('eval(1)')", "vars()", "dir()"):
                try:
                    found = found + len(str(eval(text)))
                except Exception as problem:
                    if "root:" in str(problem):
                        found = found + 1
            return {"length": 0}
        """),
    ),
    Snippet(
        "call_what_the_host_may_offer",
        Kind.DUNDERS,
        # An interpreter that asks its host for unknown names must be told "no such name".
        written("""
        def metric(input, output, metadata):
            def by_name():
                return open_file(input["canary"])
            def by_shell():
                return system("id")
            def by_fetch():
                return fetch("http://127.0.0.1:" + str(input["tcp"]))
            def by_self():
                return self.read(input["canary"])
            return tried({"name": by_name, "shell": by_shell, "fetch": by_fetch, "self": by_self})
        """),
    ),
    Snippet(
        "ask_the_host_for_ever",
        Kind.DUNDERS,
        # A clock that stands still while the host answers would never run out.
        written("""
        import os

        def metric(input, output, metadata):
            while True:
                try:
                    os.getenv("NOTHING")
                    missing_name
                except BaseException:
                    pass
        """),
        timeout_ms=150,
        ends=frozenset({"timeout"}),
        ends_small=frozenset({"timeout", "crashed", "unsupported_construct"}),
    ),
    Snippet(
        "walk_frames",
        Kind.FRAMES,
        written("""
        def metric(input, output, metadata):
            import sys
            def search():
                frame = sys._getframe()
                while frame:
                    for space in (frame.f_locals, frame.f_globals):
                        for name, value in list(space.items()):
                            if value is input or name in ("input", "HELPERS"):
                                continue
                            for text in (repr(value)[:100000], repr(getattr(value, "environ", None))):
                                if after(text, input["mark"]):
                                    return after(text, input["mark"])
                    frame = frame.f_back
            def by_traceback():
                try:
                    1 / 0
                except ZeroDivisionError as problem:
                    return after(repr(problem.__traceback__.tb_frame.f_back.f_globals), input["mark"])
            def by_generator():
                walk = (0 for _ in (1,))
                return after(repr(walk.gi_frame.f_globals), input["mark"])
            return tried({"search": search, "traceback": by_traceback, "generator": by_generator})
        """),
    ),
    Snippet(
        "rewrite_the_callers_frames",
        Kind.FRAMES,
        written("""
        def metric(input, output, metadata):
            import sys
            def forged(*arguments, **named):
                return {"forged": 1}
            frame = sys._getframe().f_back
            while frame:
                for space in (frame.f_globals, frame.f_builtins):
                    for name, value in list(space.items()):
                        if callable(value) and name not in ("metric", "callable", "list"):
                            try:
                                space[name] = forged
                            except BaseException:
                                pass
                frame = frame.f_back
            return {"quiet": 0}
        """),
        boasts=False,
    ),
    Snippet(
        "search_all_objects",
        Kind.GC,
        written("""
        def metric(input, output, metadata):
            import gc
            stack, seen = gc.get_objects(), set()
            while stack and len(seen) < 400000:
                thing = stack.pop()
                if id(thing) in seen or thing is seen or thing is stack:
                    continue
                seen.add(id(thing))
                if isinstance(thing, (str, bytes)):
                    found = after(thing, input["mark"])
                    if found:
                        return {"found": number(found)}
                else:
                    stack.extend(gc.get_referents(thing))
            return {"found": 0}
        """),
        timeout_ms=1_500,
    ),
    Snippet(
        "talk_through_found_objects",
        Kind.GC,
        written("""
        def metric(input, output, metadata):
            import gc
            for thing in gc.get_objects():
                for verb in ("send", "sendall", "write", "send_bytes", "put"):
                    talk = getattr(type(thing), verb, None)
                    if talk is None:
                        continue
                    for text in (b'{"forged": 1}\\n', '{"forged": 1}\\n'):
                        try:
                            talk(thing, text)
                        except BaseException:
                            pass
            return {"quiet": 0}
        """),
        timeout_ms=1_500,
        boasts=False,
    ),
    Snippet(
        "patch_types_through_gc",
        Kind.GC,
        written("""
        def metric(input, output, metadata):
            import gc
            for kind, name in ((str, "upper"), (dict, "items"), (list, "append"), (float, "is_integer")):
                try:
                    gc.get_referents(kind.__dict__)[0][name] = lambda *arguments: 13
                except BaseException:
                    pass
            gc.disable()
            gc.freeze()
            return {"quiet": 0}
        """),
        boasts=False,
    ),
    Snippet(
        "walk_by_format",
        Kind.FORMAT,
        written("""
        def metric(input, output, metadata):
            mark = input["mark"]
            def said(text):
                return lambda: after(text.format(metric, number), mark)
            def by_formatter():
                import string
                return after(string.Formatter().vformat("{0.__globals__}", (metric,), {}), mark)
            def by_percent():
                return after("%(a)r" % {"a": metric.__globals__}, mark)
            return tried({
                "globals": said("{0.__globals__}"), "builtins": said("{0.__globals__[__builtins__]}"),
                "class": said("{0.__class__.__mro__}"), "formatter": by_formatter, "percent": by_percent,
            })
        """),
    ),
    Snippet(
        "format_to_a_huge_width",
        Kind.FORMAT,
        written("""
        def metric(input, output, metadata):
            return {"length": len("{0:>2000000000}".format(1)) + len(f"{1:2000000000}")}
        """),
        ends=frozenset({"memory", "crashed"}),
        ends_small=frozenset({"memory", "crashed", "unsupported_construct"}),
    ),
    Snippet(
        "trace_the_worker",
        Kind.SETTRACE,
        written("""
        def metric(input, output, metadata):
            import sys
            def spy(frame, event, argument):
                if event == "return" and isinstance(argument, dict):
                    argument["forged"] = 1
                for space in (frame.f_locals, frame.f_globals):
                    if after(repr(list(space.values()))[:10000], input["mark"]):
                        raise ValueError(repr(space))
                return spy
            frame = sys._getframe()
            while frame:
                frame.f_trace = spy
                frame = frame.f_back
            sys.settrace(spy)
            sys.setprofile(spy)
            return {"quiet": 0}
        """),
        boasts=False,
    ),
    Snippet(
        "trace_away_the_timeout",
        Kind.SETTRACE,
        written("""
        def metric(input, output, metadata):
            import sys
            def stubborn(frame, event, argument):
                while True:
                    try:
                        while True:
                            pass
                    except BaseException:
                        continue
            sys.settrace(stubborn)
            return {"never": number(1)}
        """),
        timeout_ms=150,
        ends=frozenset({"timeout", "crashed"}),
    ),
    Snippet(
        "hook_everything",
        Kind.SETTRACE,
        written("""
        def metric(input, output, metadata):
            import sys
            def hook(*arguments):
                while True:
                    pass
            sys.addaudithook(lambda name, arguments: None)
            for name in ("excepthook", "unraisablehook", "displayhook", "breakpointhook"):
                setattr(sys, name, hook)
            sys.setswitchinterval(1e9)
            sys.setrecursionlimit(10**6)
            raise ValueError("hooked")
        """),
        timeout_ms=150,
        ends=frozenset({"timeout", "crashed"}),
    ),
]

DESCRIPTORS = [
    Snippet(
        "read_all_descriptors",
        Kind.FORGED_FDS,
        # The harness keeps the canary open under an inheritable number, and has another secret on its stdin.
        written("""
        def metric(input, output, metadata):
            import os
            found = {}
            for fd in range(256):
                for name, read in (("pread", lambda: os.pread(fd, 4096, 0)), ("seek", lambda: os.lseek(fd, 0, 0))):
                    try:
                        told = read()
                        if isinstance(told, bytes) and after(told, input["mark"]):
                            found[f"fd{fd}"] = number(after(told, input["mark"]))
                    except OSError:
                        pass
            return found
        """),
    ),
    Snippet(
        "drain_all_descriptors",
        Kind.FORGED_FDS,
        # Reading takes away what the host wrote for the worker, now or for the next call.
        written("""
        def metric(input, output, metadata):
            import os
            found = {}
            for fd in range(64):
                try:
                    os.set_blocking(fd, False)
                    told = os.read(fd, 1 << 20)
                    if after(told, input["mark"]):
                        found[f"fd{fd}"] = number(after(told, input["mark"]))
                except OSError:
                    pass
            return found
        """),
        timeout_ms=500,
    ),
    Snippet(
        "write_to_all_descriptors",
        Kind.FORGED_FDS,
        written("""
        def metric(input, output, metadata):
            import os
            for fd in range(101):
                for text in (b"owned\\n", b"\\x00" * 16):
                    try:
                        os.write(fd, text)
                        os.pwrite(fd, text, 0)
                    except OSError:
                        pass
            return {"quiet": 0}
        """),
    ),
    Snippet(
        "shuffle_descriptors",
        Kind.FORGED_FDS,
        written("""
        def metric(input, output, metadata):
            import os
            for source in range(8):
                for target in range(16):
                    try:
                        os.dup2(source, target)
                    except OSError:
                        pass
            return {"quiet": 0}
        """),
        timeout_ms=500,
    ),
    Snippet(
        "close_all_descriptors",
        Kind.FORGED_FDS,
        written("""
        def metric(input, output, metadata):
            import os
            os.closerange(0, 4096)
            return {"quiet": 0}
        """),
    ),
    Snippet(
        "spoil_all_descriptors",
        Kind.FORGED_FDS,
        written("""
        def metric(input, output, metadata):
            import os, fcntl
            ways = {}
            for fd in range(40):
                ways[f"truncate{fd}"] = lambda fd=fd: os.ftruncate(fd, 0) is None
                ways[f"chmod{fd}"] = lambda fd=fd: os.fchmod(fd, 0) is None
                ways[f"owner{fd}"] = lambda fd=fd: fcntl.fcntl(fd, 8, input["parent"]) and 0
                ways[f"async{fd}"] = lambda fd=fd: fcntl.fcntl(fd, 4, 0o20000) and 0
                ways[f"push{fd}"] = lambda fd=fd: len(fcntl.ioctl(fd, 0x5412, b"x"))
                ways[f"chdir{fd}"] = lambda fd=fd: os.fchdir(fd) is None
            return {name: value for name, value in tried(ways).items() if value}
        """),
    ),
    Snippet(
        "pass_descriptors",
        Kind.FORGED_FDS,
        written("""
        def metric(input, output, metadata):
            import array, socket
            ways = {}
            def give(fd):
                talk = socket.socket(fileno=fd)
                rights = array.array("i", [0, 1, 2])
                return talk.sendmsg([b'{"forged": 1}'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]) and 0
            def take(fd):
                talk = socket.socket(fileno=fd)
                return len(talk.recvmsg(1, 64, socket.MSG_DONTWAIT)[1])
            def peer(fd):
                return socket.socket(fileno=fd).shutdown(socket.SHUT_RDWR) and 0
            for fd in range(32):
                ways[f"give{fd}"] = lambda fd=fd: give(fd)
                ways[f"take{fd}"] = lambda fd=fd: take(fd)
                ways[f"peer{fd}"] = lambda fd=fd: peer(fd)
            return {name: value for name, value in tried(ways).items() if value}
        """),
    ),
    Snippet(
        "use_inherited_sockets",
        Kind.FORGED_FDS,
        # The harness also holds an inheritable connection to its own listener.
        written("""
        def metric(input, output, metadata):
            import os, socket
            for fd in range(3, 256):
                try:
                    socket.socket(fileno=fd).send(b"inherited")
                except OSError:
                    pass
                try:
                    os.write(fd, b"inherited")
                except OSError:
                    pass
            return {"quiet": 0}
        """),
    ),
]

PROTOCOL = [
    Snippet(
        "forge_an_answer_and_hang",
        Kind.PROTOCOL,
        written("""
        def metric(input, output, metadata):
            import json, os, struct
            bodies = [b'{"forged": 1}', b'{"metrics": {"forged": 1}}', b'{"ok": true, "metrics": {"forged": 1}}',
                      b'{"result": {"forged": 1}}', b'["ok", {"forged": 1}]', b'ok {"forged": 1}']
            for fd in range(64):
                for body in bodies:
                    heads = [struct.pack(how, len(body)) for how in (">I", "<I", "<Q")]
                    # As this sandbox's own jail frames an answer: its length, and whether it is a failure.
                    heads += [struct.pack(">IB", len(body), 0), struct.pack(">IB", len(body), 1)]
                    for head, tail in [(b"", b"\\n"), (b"", b"\\0"), *((head, b"") for head in heads)]:
                        try:
                            os.write(fd, head + body + tail)
                        except OSError:
                            break
            while True:
                pass
        """),
        timeout_ms=150,
        boasts=False,
    ),
    Snippet(
        "answer_twice",
        Kind.PROTOCOL,
        written("""
        def metric(input, output, metadata):
            import os, struct
            body = b'{"metrics": {"forged": 1}, "forged": 1}'
            for fd in range(64):
                for text in (body + b"\\n", struct.pack(">I", len(body)) + body, struct.pack("<I", len(body)) + body):
                    for attempt in range(2):
                        try:
                            os.write(fd, text)
                        except OSError:
                            break
            return {"quiet": 0}
        """),
        boasts=False,
    ),
    Snippet(
        "answer_half",
        Kind.PROTOCOL,
        written("""
        def metric(input, output, metadata):
            import os, struct
            for fd in range(64):
                for text in (struct.pack("<I", 1000) + b'{"forged"', struct.pack(">I", 1000) + b'{"forged"'):
                    try:
                        os.write(fd, text)
                    except OSError:
                        break
            os._exit(0)
        """),
        ends=frozenset({"crashed", "result_rejected", "timeout"}),
    ),
    Snippet(
        "announce_a_huge_answer",
        Kind.PROTOCOL,
        written("""
        def metric(input, output, metadata):
            import os
            for fd in range(64):
                for text in (b"\\x7f\\xff\\xff\\xff", b"\\xff" * 8, b"\\xff\\xff\\xff\\x7f" + bytes(4), b"\\x00" * 8):
                    try:
                        os.write(fd, text)
                    except OSError:
                        break
            while True:
                pass
        """),
        timeout_ms=150,
        ends=frozenset({"crashed", "result_rejected", "timeout"}),
    ),
    Snippet(
        "answer_megabytes_of_garbage",
        Kind.PROTOCOL,
        written("""
        def metric(input, output, metadata):
            import os
            for fd in range(1, 64):
                try:
                    os.set_blocking(fd, False)
                except OSError:
                    continue
                for attempt in range(160):
                    try:
                        os.write(fd, os.urandom(1 << 16) if attempt == 0 else b"\\xa5" * (1 << 16))
                    except OSError:
                        break
            return {"quiet": 0}
        """),
        timeout_ms=600,
        boasts=False,
    ),
    Snippet(
        "answer_slowly",
        Kind.PROTOCOL,
        # One byte at a time keeps a careless reader waiting for ever.
        written("""
        def metric(input, output, metadata):
            import os, time
            while True:
                for fd in range(1, 64):
                    try:
                        os.write(fd, b" ")
                    except OSError:
                        pass
        """),
        timeout_ms=150,
        ends=frozenset({"crashed", "result_rejected", "timeout"}),
    ),
    Snippet(
        "hang_with_closed_descriptors",
        Kind.PROTOCOL,
        written("""
        def metric(input, output, metadata):
            import os
            os.closerange(0, 4096)
            while True:
                pass
        """),
        timeout_ms=150,
        ends=frozenset({"crashed", "timeout"}),
    ),
]

BYTECODE = [
    Snippet(
        f"bad_bytecode_{name}",
        Kind.BYTECODE,
        written(f"""
        def metric(input, output, metadata):
            def victim(a=1, b=2):
                return a + b
            changed = victim.__code__.replace({change})
            return {{"sum": 0 * int(type(victim)(changed, globals(), None, (1, 2))() or 0)}}
        """),
        timeout_ms=500,
    )
    for name, change in {
        "garbage": "co_code=bytes(range(256))",
        "constants_beyond": "co_code=bytes([151, 0, 100, 255, 83, 0] * 8)",
        "locals_beyond": "co_code=bytes([151, 0, 144, 255, 144, 255, 124, 255, 83, 0])",
        "stack_underflow": "co_code=bytes([151, 0] + [1, 0] * 2000 + [83, 0])",
        "no_stack": "co_stacksize=0, co_code=bytes([151, 0] + [124, 0] * 5000 + [83, 0])",
        "no_end": "co_code=bytes([9, 0])",
        "jump_away": "co_code=bytes([151, 0, 144, 255, 144, 255, 110, 255, 83, 0])",
        "backwards": "co_code=bytes([151, 0, 144, 255, 144, 255, 140, 255, 83, 0])",
    }.items()
]

SNIPPETS = [*NATIVE, *PICKLES, *FORKS, *WALKS, *DESCRIPTORS, *PROTOCOL, *BYTECODE]
