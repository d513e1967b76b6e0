"""Explored model of the lock and its line: every reachable state of a few processes, jobs and workers.

It is what ARCHITECTURE.md and src/store/lua/*.lua describe, in its smallest form: a better idea for the protocol is
tried here first. A step of `cargo xtask check`; Python 3 alone, about a minute:

    python3 tests/model/lock_line.py [--config=NAME] [fault]

Live processes have one place each; A and B exclude, C and D share (or have permits), as the configuration says. Some
come again and again, some pass the lock on (release and rejoin in one step; whoever is next of that process may have come
before any of those who stand in line), some turn it into a shared one. J and K
are deferred jobs of the same resource, V and W workers. Checked in every state, or at every step:
  MUTEX   those who are in are of one mode: one who excludes, any number that share, at most so many permits
  TWICE   no job is run by two workers at once
  ORDER   J is never started after K while both wait
  RUN     a step that leaves room lets in whoever stands next and fits (the whole leading run of readers)
  STUCK   whoever waits can be served, and a queued job finish, by the system's own steps alone (no new crash, no
          giving up, no new worker)
  PHASE   nobody who comes is let in before a live one who waits, unless with an older sequence; and there is no
          endless round in which such ones come in while somebody stays in line
Sequences are trusted where they do not let anybody in beside others: who lies about his place while one who excludes
is in gets that place.
Not modelled: pauses of workers, tries, local hand-over, retries and backoff.
Prints the shortest trace to each violation, and 'N states, bad 0' where all holds. Each flag plants one fault, which
must be caught (the last line of the output says in which configurations it was):
  --no-pass      an unconfirmed job is not passed over       --keep-head  an offered live place stays in the line
  --no-nudge     a worker does not move on a line whose head is live
  --job-token    the job's id, not a run token, is the owner
  --claim-out    a claimed job leaves the line (and comes back when its lease is found to have ended)
  --no-run       a release offers the lock to one reader only, and nobody tells the others
  --reader-barge a reader is let in beside the others past a writer who waits
  --no-window    readers with an old sequence may pass a writer for ever
  --any-mode     nobody looks at the mode of those who are in
  --no-leave     one who leaves the line does not let in those behind him
  --left-over    a lock is left to the next of its process, who joins the line instead of taking it
  --pass-first   whoever is next of its process has the lock though others came before
"""
import sys
from collections import deque

FLAGS = ("--no-pass", "--keep-head", "--no-nudge", "--job-token", "--claim-out", "--no-run", "--reader-barge",
         "--no-window", "--any-mode", "--no-leave", "--left-over", "--pass-first")
(NO_PASS, KEEP_HEAD, NO_NUDGE, JOB_TOKEN, CLAIM_OUT, NO_RUN, BARGE, NO_WINDOW, ANY_MODE, NO_LEAVE, LEFT_OVER,
 PASS_FIRST) = (f in sys.argv for f in FLAGS)
PERMITS = 2

# modes of the live processes, jobs, workers; who comes again, who comes with an old sequence of his process, who
# passes on once, who downgrades, who never dies
CONFIGS = {
    "jobs": dict(live={"A": "x", "B": "x"}, jobs="JK", workers="VW"),
    "readers": dict(live={"A": "x", "B": "x", "C": "s", "D": "s"}),
    "readers and a job": dict(live={"A": "x", "C": "s", "D": "s"}, jobs="J", workers="V"),
    "readers and jobs": dict(live={"C": "s"}, jobs="JK", workers="VW"),
    "permits": dict(live={"A": "x", "C": "p", "D": "p", "E": "p"}),
    "mixed": dict(live={"A": "x", "C": "s", "D": "p"}, jobs="J", workers="V"),
    "pass": dict(live={"A": "x", "B": "x", "C": "s", "D": "s"}, passes="AC", safe="BD"),
    "pass before a job": dict(live={"A": "x", "C": "s"}, jobs="J", workers="V", passes="AC"),
    "downgrade": dict(live={"A": "x", "B": "x", "C": "s", "D": "s"}, down="AB", safe="D"),
    "phase": dict(live={"A": "x", "C": "s", "D": "s", "E": "s"}, again="CDE", old="CDE", safe="CDE"),
    "phase of permits": dict(live={"A": "x", "C": "p", "D": "p", "E": "p"}, again="CDE", old="CDE", safe="CDE"),
    "phase past a job": dict(live={"C": "s", "D": "s"}, jobs="J", workers="V", again="CD", old="CD", safe="CD"),
}


def put(t, i, v):
    t = list(t)
    t[i] = v
    return tuple(t)


def without(line, x):
    return tuple(e for e in line if e != x)


def fits(mode, held):
    """held: members of h, (owner, 'offered' or 'held', mode), sorted"""
    if not held or (ANY_MODE and mode != "x"):
        return True
    if held[0][2] != mode or mode == "x":
        return False
    return mode == "s" or len(held) < PERMITS


def add(held, owner, kind, mode):
    return tuple(sorted(tuple(m for m in held if m[0] != owner) + ((owner, kind, mode),)))


def out_of(held, owner):
    return tuple(m for m in held if m[0] != owner)


def member(held, owner):
    return next((m for m in held if m[0] == owner), None)


class Model:
    """State: held; line, in order of sequence; live: idle, wait, hold, gone, dead; rejoined once; passed on once;
    jobs: none, queued, run:V, run:W, run:x (its worker died), done; work: alive; parked: the jobs of this line are
    passed over; past: None, or (whom old sequences have passed, 'open' or 'over')."""

    NAMES = ("held", "line", "live", "rej", "gave", "jobs", "work", "parked", "past")

    def __init__(self, live, jobs="", workers="", again="", old="", passes="", down="", safe=""):
        self.who, self.mode = "".join(live), live
        self.jobs, self.workers = jobs, workers
        self.again, self.old, self.passes, self.down, self.safe = again, old, passes, down, safe
        n = len(live)
        self.init = ((), (), ("idle",) * n, (False,) * n, (False,) * n, ("none",) * len(jobs), (True,) * len(workers),
                     False, None)

    def head(self, line, parked):
        jobs_seen = False
        for e in line:
            if e in self.jobs and (parked or jobs_seen):
                continue
            return e
        return None

    def move_on(self, held, line, parked):
        """what a release, or a visit to a lock with room, does: offers to those at the head who fit"""
        while True:
            h = self.head(line, parked)
            if h is None or (held and held[0][2] == "x" and not ANY_MODE):
                return held, line
            if h in self.jobs:
                return (held, line) if held else (((h, "offered", "x"),), line)
            if not fits(self.mode[h], held):
                return held, line
            held = add(held, h, "offered", self.mode[h])
            if not KEEP_HEAD:
                line = without(line, h)
            if self.mode[h] == "x" or NO_RUN or KEEP_HEAD:
                return held, line

    def acquire(self, go, s, i, p, old, name, **also):
        """the call of a process that has neither the lock nor an offer"""
        held, line, live, rej, gave, jobs, work, parked, past = s
        mode = self.mode[p]
        rej = also.pop("rej", rej)
        first = self.head(line, parked)
        if old and mode != "x" and not (held and held[0][2] == "x") and first not in (None, p) and not NO_WINDOW:
            if past and past[0] in line and line.index(past[0]) >= line.index(first):
                old = past[1] == "open"
            else:
                past = (first, "open")
        here = p in line
        barge = BARGE and mode == "s" and held and held[0][2] == "s"
        if fits(mode, held) and (first in (None, p) or old or barge):
            h, ln = add(held, p, "held", mode), without(line, p)
            if mode != "x" and not NO_RUN:
                h, ln = self.move_on(h, ln, parked)
            return go(f"take {p}{name}", held=h, line=ln, live=put(live, i, "hold"), rej=rej, past=past,
                      fresh=not (old or here), by=p, **also)
        ln = line if here else ((p,) + line if old else line + (p,))
        h, ln = self.move_on(held, ln, parked)
        if mode != "x" and member(h, p):
            return go(f"take {p}{name} in line", held=add(h, p, "held", mode), line=ln, live=put(live, i, "hold"), rej=rej,
                      past=past, by=p, **also)
        go(f"join {p}{name}", held=h, line=ln, live=put(live, i, "wait"), rej=rej, past=past, **also)

    def pass_on(self, go, s, i, p):
        """a holder who excludes gives back, and asks for the next of its process, who came before line[at]"""
        held, line, live, rej, gave, jobs, work, parked, past = s
        first, also = self.head(line, parked), dict(gave=put(gave, i, True))
        for at in range(len(line)):
            behind = line[at:]
            if first in behind or (PASS_FIRST and first):
                name = f"take {p} by passing on before {line[at]}"
                if LEFT_OVER:
                    ln = line[:at] + (p,) + behind
                    go(name.replace("take", "join", 1), held=out_of(held, p), line=ln, live=put(live, i, "wait"), **also)
                else:
                    go(name, held=add(held, p, "held", "x"), fresh=first not in behind, by=p, **also)
                continue
            h, ln = self.move_on(out_of(held, p), line, parked)
            k = next((k for k, e in enumerate(ln) if e in behind), len(ln))
            there = ln[:k] + (p,) + ln[k:]
            if not h and self.head(there, parked) == p:
                go(f"take {p} by passing on where nobody can be served", held=((p, "held", "x"),), line=ln, by=p, **also)
            else:
                go(f"join {p} by passing on before {line[at]}", held=h, line=there, live=put(live, i, "wait"), **also)

    def steps(self, s):
        held, line, live, rej, gave, jobs, work, parked, past = s
        out = []

        def go(name, fresh=False, by=None, **k):
            new = dict(zip(self.NAMES, s))
            new.update(k)
            if new["past"] and new["past"][0] not in new["line"]:
                new["past"] = None      # sequences are not given twice: what was noted of him counts for nobody else
            out.append((name, tuple(new[n] for n in self.NAMES), fresh, by))

        for i, p in enumerate(self.who):
            self.live_steps(go, s, i, p)
        for j, q in enumerate(self.jobs):
            self.job_steps(go, s, j, q)
        for w, name in enumerate(self.workers):
            self.worker_steps(go, s, w, name)
        for o, kind, _ in held:
            if kind == "offered":
                go(f"lapse {o}", held=out_of(held, o), parked=parked or (o in self.jobs and not NO_PASS))
            elif o in self.who and live[self.who.index(o)] == "dead":
                go(f"expire {o}", held=out_of(held, o))
            elif o not in self.who and jobs[self.jobs.index(o[0])] == "run:x":
                go(f"expire {o}", held=out_of(held, o))
        if past and past[1] == "open":
            go("window ends", past=(past[0], "over"))
        return out

    def live_steps(self, go, s, i, p):
        held, line, live, rej, gave, jobs, work, parked, past = s
        v, mine = live[i], member(held, p)
        if v in ("idle", "wait"):
            if mine:                                                   # confirm, or a repeated call
                h, ln = add(held, p, "held", self.mode[p]), without(line, p)
                if self.mode[p] != "x" and not NO_RUN:
                    h, ln = self.move_on(h, ln, parked)
                go(f"confirm {p}", held=h, line=ln, live=put(live, i, "hold"), by=p)
            else:
                back = v == "wait" and p not in line and not rej[i]    # its offer lapsed: old sequence, once
                self.acquire(go, s, i, p, back, "", rej=put(rej, i, True) if back else rej)
                if p in self.old and p not in line and not back and not (held and held[0][2] == "x"):
                    self.acquire(go, s, i, p, True, " with an old sequence")
            if v == "wait":
                h, ln = out_of(held, p), without(line, p)
                if not NO_LEAVE or mine:
                    h, ln = self.move_on(h, ln, parked)
                go(f"leave {p}", held=h, line=ln, live=put(live, i, "gone"))
                if p not in self.safe:
                    go(f"crash {p}", live=put(live, i, "dead"))
        if v == "hold" and mine and mine[1] == "held":
            h, ln = self.move_on(out_of(held, p), line, parked)
            go(f"release {p}", held=h, line=ln, live=put(live, i, "gone"))
            if p in self.passes and not gave[i]:
                released = (h, ln) + s[2:]
                self.acquire(go, released, i, p, False, " by passing on", gave=put(gave, i, True))
                if mine[2] == "x":
                    self.pass_on(go, s, i, p)
            if p in self.down and mine[2] == "x":
                h, ln = self.move_on(add(out_of(held, p), p, "held", "s"), line, parked)
                go(f"downgrade {p}", held=h, line=ln)
            if p not in self.safe:
                go(f"crash {p}", live=put(live, i, "dead"))
                go(f"pause+expire {p}", held=out_of(held, p), live=put(live, i, "gone"))
        if v == "gone" and p in self.again:
            go(f"again {p}", live=put(live, i, "idle"), rej=put(rej, i, False))
        if v == "dead" and p in line:
            go(f"deadline {p}", line=without(line, p))

    def job_steps(self, go, s, j, q):
        held, line, live, rej, gave, jobs, work, parked, past = s
        if jobs[j] == "none" and (j == 0 or jobs[0] != "none") and (held or self.head(line, parked) is not None):
            go(f"defer {q}", line=line + (q,), jobs=put(jobs, j, "queued"))
        if jobs[j].startswith("run:"):
            w = jobs[j][4]
            owner = q if JOB_TOKEN else q + w
            if w != "x" and member(held, owner) == (owner, "held", "x"):
                h, ln = self.move_on(out_of(held, owner), without(line, q), parked)
                go(f"ack {q} by {w}", held=h, line=ln, jobs=put(jobs, j, "done"))
            elif CLAIM_OUT and not member(held, q + w) and q not in line:
                go(f"reclaim {q}", line=(q,) + line, jobs=put(jobs, j, "queued"))

    def worker_steps(self, go, s, w, name):
        held, line, live, rej, gave, jobs, work, parked, past = s
        if not work[w]:
            return go(f"new {name}", work=put(work, w, True))
        orphans = tuple("run:x" if j == f"run:{name}" else j for j in jobs)     # a run token dies with its worker
        go(f"crash {name}", work=put(work, w, False), jobs=orphans)
        if parked:
            go(f"show up {name}", parked=False)
        for j, q in enumerate(self.jobs):
            first = next((e for e in line if e in self.jobs), None) == q
            free = member(held, q) == (q, "offered", "x") or (not held and self.head(line, parked) == q)
            if first and (free or (JOB_TOKEN and member(held, q))):
                other = any(jobs[j] == f"run:{v}" for v in self.workers if v != name) and held and held[0][1] == "held"
                owner = q if JOB_TOKEN else q + name
                go(f"claim {q} by {name}", held=add(out_of(held, q), owner, "held", "x"),
                   line=without(line, q) if CLAIM_OUT else line, parked=False,
                   jobs=put(jobs, j, "TWICE" if other else f"run:{name}"))
        if not held and self.head(line, parked) in tuple(self.who) and any(e in self.jobs for e in line) and not NO_NUDGE:
            h, ln = self.move_on(held, line, parked)
            go(f"nudge by {name}", held=h, line=ln)


# What the system does by itself, and after which of them nobody who fits is left standing at the head.
# (The deadline of a dead one's place may be far: nobody should have to wait for it.)
HELPFUL = ("confirm", "take", "join", "release", "reclaim", "show up", "claim", "ack", "nudge", "lapse", "expire", "window")
VISITS = ("confirm", "take", "join", "release", "leave", "downgrade", "ack", "nudge")


def explore(model):
    seen, edges, todo = {model.init: None}, {}, deque([model.init])
    while todo:
        s = todo.popleft()
        edges[s] = model.steps(s)
        for a, n, *_ in edges[s]:
            if n not in seen:
                seen[n] = (s, a)
                todo.append(n)
    return seen, edges


def components(nodes, arcs):
    """strongly connected ones, without recursion; node -> number"""
    order, done = [], set()
    for root in nodes:
        if root in done:
            continue
        done.add(root)
        stack = [(root, iter(arcs.get(root, ())))]
        while stack:
            node, rest = stack[-1]
            n = next((n for n in rest if n not in done), None)
            if n is None:
                order.append(node)
                stack.pop()
            else:
                done.add(n)
                stack.append((n, iter(arcs.get(n, ()))))
    back = {}
    for a, ns in arcs.items():
        for n in ns:
            back.setdefault(n, []).append(a)
    number, count = {}, 0
    for root in reversed(order):
        if root in number:
            continue
        todo = [root]
        while todo:
            node = todo.pop()
            if node not in number:
                number[node] = count
                todo.extend(back.get(node, ()))
        count += 1
    return number


def phase(model, seen, edges, report):
    """rounds in which x stays in line, alive, and somebody comes in past it outside of its window"""
    for x in model.who + model.jobs:
        def stays(s):
            if x not in s[1]:
                return False
            if x in model.who:
                return s[2][model.who.index(x)] == "wait"
            return s[5][model.jobs.index(x)] == "queued" and not member(s[0], x) and not s[7] and any(s[6])
        nodes = [s for s in seen if stays(s) and not (s[8] and s[8][1] == "open")]
        inside = set(nodes)
        arcs = {s: [n for _, n, *_ in edges[s] if n in inside] for s in nodes}
        number = components(nodes, arcs)
        for s in nodes:
            for a, n, _, by in edges[s]:
                if by and n in inside and number[s] == number[n]:
                    report("PHASE round", n)


def check(model):
    seen, edges = explore(model)
    bad = {}

    def trace(s):
        t = []
        while seen[s]:
            s, a = seen[s]
            t.append(a)
        return t[::-1]

    def report(kind, s):
        if kind not in bad:
            print(" ", kind, s, trace(s))
        bad[kind] = bad.get(kind, 0) + 1

    back = {}
    for s, es in edges.items():
        for a, n, *_ in es:
            if a.startswith(HELPFUL):
                back.setdefault(n, []).append(s)

    def can_reach(goal):
        ok, todo = set(), [s for s in seen if goal(s)]
        while todo:
            s = todo.pop()
            if s not in ok:
                ok.add(s)
                todo.extend(back.get(s, ()))
        return ok

    served = [can_reach(lambda s, i=i: s[2][i] != "wait") for i in range(len(model.who))]
    done = [can_reach(lambda s, j=j: s[5][j] == "done") for j in range(len(model.jobs))]
    for s in seen:
        held, line, live, rej, gave, jobs, work, parked, past = s
        modes = {m for _, _, m in held}
        if len(modes) > 1 or (modes == {"x"} and len(held) > 1) or (modes == {"p"} and len(held) > PERMITS):
            report("MUTEX", s)
        if "TWICE" in jobs:
            report("TWICE", s)
        for a, n, fresh, by in edges[s]:
            if a.startswith("claim K") and jobs[0] not in ("none", "done"):
                report("ORDER", n)
            h = model.head(n[1], n[7])
            if a.startswith(VISITS) and h and h in model.who and not member(n[0], h) and fits(model.mode[h], n[0]):
                report("RUN", n)
            waits = [e for e in line if e in n[1] and e in model.who and live[model.who.index(e)] == "wait"]
            waits += [e for e in line if e in n[1] and e in model.jobs and not parked and not member(held, e)]
            if fresh and waits:
                report("PHASE", n)
        for i in range(len(model.who)):
            if live[i] == "wait" and s not in served[i]:
                report("STUCK live", s)
        for j in range(len(model.jobs)):
            if jobs[j] in ("queued", "run:V", "run:W", "run:x") and any(work) and s not in done[j]:
                report("STUCK job", s)
    phase(model, seen, edges, report)
    return len(seen), bad


def main():
    only = [a.split("=", 1)[1] for a in sys.argv if a.startswith("--config=")]
    unknown = [a for a in sys.argv[1:] if a not in FLAGS and not a.startswith("--config=")]
    if unknown or any(name not in CONFIGS for name in only):
        sys.exit(__doc__)
    states, caught = 0, []
    for name, config in CONFIGS.items():
        if only and name not in only:
            continue
        n, bad = check(Model(**config))
        states += n
        print(f"{name}: {n} states, bad {sum(bad.values())} {' '.join(sorted(bad))}".rstrip())
        if bad:
            caught.append(name)
    print(f"{states} states, bad in: {', '.join(caught)}" if caught else f"{states} states, bad 0")
    return 1 if caught else 0


if __name__ == "__main__":
    sys.exit(main())
