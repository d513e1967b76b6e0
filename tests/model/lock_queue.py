"""Explored model of a lock and its wait queue: all reachable states of a few processes and jobs.

It is the protocol of ARCHITECTURE.md and src/store/lua/*.lua in its smallest form. Change it first
if the protocol changes. `cargo xtask check` runs it; Python 3 alone, about a minute:

    python3 tests/model/lock_queue.py [--config=NAME] [fault]

Each live process has one queue entry. A and B are exclusive; C and D are shared or have permits, as
the configuration says. Some processes arrive again and again. Some hand the lock over: they release
and rejoin in one operation, and the next waiter of that process may have arrived before any entry
of the queue. Some downgrade to a shared lock. J and K are deferred jobs of the same resource, V and
W workers. Checked in every state, or at every transition:
  MUTEX   the holders have one mode: one exclusive holder, any number of readers, or at most PERMITS
          permits
  TWICE   no job is run by two workers at once
  ORDER   J is never started after K while both wait
  RUN     a transition that frees the lock offers it to the head of the queue, if that fits (the
          whole leading run of readers)
  STUCK   each waiter can be served, and each queued job can finish, by the system's own transitions
          alone (no new crash, no leaving, no new worker)
  PHASE   no new arrival is admitted before a live waiter, except with an older sequence; and there
          is no endless cycle in which such arrivals are admitted while a waiter stays in the queue
Sequences are trusted where they admit no process beside others: a process that reports a false
sequence during an exclusive hold gets that position.
Not modelled: pauses of workers, attempts, handovers inside a process, retries and backoff.
Prints the shortest trace to each violation, and 'N states, bad 0' if all holds. Each flag plants
one fault, which must be caught (the last line of the output says in which configurations it was):
  --no-job-skip        an unconfirmed job is not skipped
  --keep-head          a live entry with an offer stays in the queue
  --no-nudge           a worker does not offer the lock to a live head of the queue
  --job-token          the job's id, not a run token, is the owner
  --claim-dequeues     a claimed job leaves the queue (and is requeued when its lease is found to
                       have ended)
  --no-run             a release offers the lock to one reader only, and no transition offers it to
                       the others
  --reader-barge       a reader is admitted beside the others before a waiting writer
  --no-window          readers with an old sequence may overtake a writer without limit
  --any-mode           the mode of the holders is not checked
  --no-leave           a waiter that leaves the queue does not offer the lock to the entries behind
                       it
  --handover-requeues  a handover makes the next waiter of its process join the queue instead of
                       taking the lock
  --force-no-offer     an operator's forced release does not offer the lock
  --handover-overtakes the next waiter of the process takes the lock although others arrived before
                       it
"""
import sys
from collections import deque

FLAGS = (
    "--no-job-skip", "--keep-head", "--no-nudge", "--job-token", "--claim-dequeues", "--no-run",
    "--reader-barge", "--no-window", "--any-mode", "--no-leave", "--handover-requeues",
    "--handover-overtakes", "--force-no-offer",
)
(
    NO_JOB_SKIP, KEEP_HEAD, NO_NUDGE, JOB_TOKEN, CLAIM_DEQUEUES, NO_RUN,
    BARGE, NO_WINDOW, ANY_MODE, NO_LEAVE, HANDOVER_REQUEUES,
    HANDOVER_OVERTAKES, FORCE_NO_OFFER,
) = (f in sys.argv for f in FLAGS)
PERMITS = 2

# Modes of the live processes, jobs and workers. Then the processes that arrive again
# (`rearriving`), that may arrive with an older sequence of their process (`with_old_sequence`),
# that hand the lock over once (`handing_over`), that downgrade (`downgrading`), and that never die
# (`immortal`); and whether an operator takes the lock from its holders (`forces_release`).
CONFIGS = {
    "jobs": dict(live={"A": "x", "B": "x"}, jobs="JK", workers="VW"),
    "readers": dict(live={"A": "x", "B": "x", "C": "s", "D": "s"}),
    "readers and a job": dict(live={"A": "x", "C": "s", "D": "s"}, jobs="J", workers="V"),
    "readers and jobs": dict(live={"C": "s"}, jobs="JK", workers="VW"),
    "permits": dict(live={"A": "x", "C": "p", "D": "p", "E": "p"}),
    "mixed": dict(live={"A": "x", "C": "s", "D": "p"}, jobs="J", workers="V"),
    "handover": dict(
        live={"A": "x", "B": "x", "C": "s", "D": "s"}, handing_over="AC", immortal="BD",
    ),
    "handover before a job": dict(
        live={"A": "x", "C": "s"}, jobs="J", workers="V", handing_over="AC",
    ),
    "downgrade": dict(
        live={"A": "x", "B": "x", "C": "s", "D": "s"}, downgrading="AB", immortal="D",
    ),
    "forced release": dict(
        live={"A": "x", "B": "x", "C": "s"}, jobs="J", workers="V", forces_release=True,
    ),
    "phase": dict(
        live={"A": "x", "C": "s", "D": "s", "E": "s"},
        rearriving="CDE", with_old_sequence="CDE", immortal="CDE",
    ),
    "phase of permits": dict(
        live={"A": "x", "C": "p", "D": "p", "E": "p"},
        rearriving="CDE", with_old_sequence="CDE", immortal="CDE",
    ),
    "phase before a job": dict(
        live={"C": "s", "D": "s"}, jobs="J", workers="V",
        rearriving="CD", with_old_sequence="CD", immortal="CD",
    ),
}


def put(t, i, v):
    t = list(t)
    t[i] = v
    return tuple(t)


def without(queue, x):
    return tuple(e for e in queue if e != x)


def fits(mode, held):
    """held: the holders and offers, (owner, 'offered' or 'held', mode), sorted"""
    if not held or (ANY_MODE and mode != "x"):
        return True
    if held[0][2] != mode or mode == "x":
        return False
    return mode == "s" or len(held) < PERMITS


def add(held, owner, kind, mode):
    return tuple(sorted(tuple(m for m in held if m[0] != owner) + ((owner, kind, mode),)))


def without_owner(held, owner):
    return tuple(m for m in held if m[0] != owner)


def member(held, owner):
    return next((m for m in held if m[0] == owner), None)


class Model:
    """State: held; queue, in order of sequence; live: idle, wait, hold, gone, dead; rejoined once;
    handed over once; jobs: none, queued, run:V, run:W, run:x (its worker died), done; alive
    workers; jobs_skipped: the jobs of this queue are skipped; overtaken: None, or (the head that
    old sequences have overtaken, 'open' or 'over')."""

    NAMES = (
        "held", "queue", "live", "rejoined", "handed_over", "jobs", "alive_workers",
        "jobs_skipped", "overtaken",
    )

    def __init__(
        self, live, jobs="", workers="", rearriving="", with_old_sequence="", handing_over="",
        downgrading="", immortal="", forces_release=False,
    ):
        self.processes, self.mode = "".join(live), live
        self.jobs, self.workers = jobs, workers
        self.rearriving, self.with_old_sequence = rearriving, with_old_sequence
        self.handing_over, self.downgrading, self.immortal = handing_over, downgrading, immortal
        self.forces_release = forces_release
        n = len(live)
        self.init = (
            (), (), ("idle",) * n, (False,) * n, (False,) * n, ("none",) * len(jobs),
            (True,) * len(workers), False, None,
        )

    def head(self, queue, jobs_skipped):
        jobs_seen = False
        for e in queue:
            if e in self.jobs and (jobs_skipped or jobs_seen):
                continue
            return e
        return None

    def serve_head(self, held, queue, jobs_skipped):
        """offers a lock to the entries at the head of the queue, as far as they fit"""
        while True:
            head = self.head(queue, jobs_skipped)
            if head is None or (held and held[0][2] == "x" and not ANY_MODE):
                return held, queue
            if head in self.jobs:
                return (held, queue) if held else (((head, "offered", "x"),), queue)
            if not fits(self.mode[head], held):
                return held, queue
            held = add(held, head, "offered", self.mode[head])
            if not KEEP_HEAD:
                queue = without(queue, head)
            if self.mode[head] == "x" or NO_RUN or KEEP_HEAD:
                return held, queue

    def acquire(self, go, s, i, p, has_old_sequence, name, **changes):
        """the call of a process that has neither the lock nor an offer"""
        held, queue, live, rejoined, handed_over, jobs, alive_workers, jobs_skipped, overtaken = s
        mode = self.mode[p]
        rejoined = changes.pop("rejoined", rejoined)
        first = self.head(queue, jobs_skipped)
        excluded = held and held[0][2] == "x"
        overtakes = has_old_sequence and mode != "x" and first not in (None, p)
        if overtakes and not excluded and not NO_WINDOW:
            noted = overtaken and overtaken[0] in queue
            if noted and queue.index(overtaken[0]) >= queue.index(first):
                has_old_sequence = overtaken[1] == "open"
            else:
                overtaken = (first, "open")
        is_queued = p in queue
        barge = BARGE and mode == "s" and held and held[0][2] == "s"
        if fits(mode, held) and (first in (None, p) or has_old_sequence or barge):
            new_held, new_queue = add(held, p, "held", mode), without(queue, p)
            if mode != "x" and not NO_RUN:
                new_held, new_queue = self.serve_head(new_held, new_queue, jobs_skipped)
            return go(f"take {p}{name}", held=new_held, queue=new_queue, live=put(live, i, "hold"),
                      rejoined=rejoined, overtaken=overtaken,
                      is_new_arrival=not (has_old_sequence or is_queued), taker=p, **changes)
        new_queue = queue if is_queued else ((p,) + queue if has_old_sequence else queue + (p,))
        new_held, new_queue = self.serve_head(held, new_queue, jobs_skipped)
        if mode != "x" and member(new_held, p):
            return go(f"take {p}{name} from the queue", held=add(new_held, p, "held", mode),
                      queue=new_queue, live=put(live, i, "hold"), rejoined=rejoined,
                      overtaken=overtaken, taker=p, **changes)
        go(f"join {p}{name}", held=new_held, queue=new_queue, live=put(live, i, "wait"),
           rejoined=rejoined, overtaken=overtaken, **changes)

    def hand_over(self, go, s, i, p):
        """an exclusive holder hands over to the next waiter of its process; that waiter arrived
        before queue[at]"""
        held, queue, live, rejoined, handed_over, jobs, alive_workers, jobs_skipped, overtaken = s
        first, changes = self.head(queue, jobs_skipped), dict(handed_over=put(handed_over, i, True))
        for at in range(len(queue)):
            later_entries = queue[at:]
            if first in later_entries or (HANDOVER_OVERTAKES and first):
                name = f"take {p} by handover before {queue[at]}"
                if HANDOVER_REQUEUES:
                    new_queue = queue[:at] + (p,) + later_entries
                    go(name.replace("take", "join", 1), held=without_owner(held, p),
                       queue=new_queue, live=put(live, i, "wait"), **changes)
                else:
                    go(name, held=add(held, p, "held", "x"),
                       is_new_arrival=first not in later_entries, taker=p, **changes)
                continue
            new_held, new_queue = self.serve_head(without_owner(held, p), queue, jobs_skipped)
            positions = (at for at, e in enumerate(new_queue) if e in later_entries)
            position = next(positions, len(new_queue))
            rejoined_queue = new_queue[:position] + (p,) + new_queue[position:]
            if not new_held and self.head(rejoined_queue, jobs_skipped) == p:
                go(f"take {p} by handover, no entry can be served", held=((p, "held", "x"),),
                   queue=new_queue, taker=p, **changes)
            else:
                go(f"join {p} by handover before {queue[at]}", held=new_held, queue=rejoined_queue,
                   live=put(live, i, "wait"), **changes)

    def transitions(self, s):
        held, queue, live, rejoined, handed_over, jobs, alive_workers, jobs_skipped, overtaken = s
        out = []

        def go(name, is_new_arrival=False, taker=None, **k):
            new = dict(zip(self.NAMES, s))
            new.update(k)
            if new["overtaken"] and new["overtaken"][0] not in new["queue"]:
                # No sequence is assigned twice, so the note counts for no other entry.
                new["overtaken"] = None
            out.append((name, tuple(new[n] for n in self.NAMES), is_new_arrival, taker))

        for i, p in enumerate(self.processes):
            self.live_transitions(go, s, i, p)
        for j, q in enumerate(self.jobs):
            self.job_transitions(go, s, j, q)
        for w, name in enumerate(self.workers):
            self.worker_transitions(go, s, w, name)
        self.force_release(go, s)
        for o, kind, _ in held:
            if kind == "offered":
                skips = jobs_skipped or (o in self.jobs and not NO_JOB_SKIP)
                go(f"lapse {o}", held=without_owner(held, o), jobs_skipped=skips)
            elif o in self.processes and live[self.processes.index(o)] == "dead":
                go(f"expire {o}", held=without_owner(held, o))
            elif o not in self.processes and jobs[self.jobs.index(o[0])] == "run:x":
                go(f"expire {o}", held=without_owner(held, o))
        if overtaken and overtaken[1] == "open":
            go("window ends", overtaken=(overtaken[0], "over"))
        return out

    def force_release(self, go, s):
        """an operator takes the lock from its holders; offers stay"""
        held, queue, live, rejoined, handed_over, jobs, alive_workers, jobs_skipped, overtaken = s
        offers = tuple(m for m in held if m[1] == "offered")
        if not self.forces_release or offers == held:
            return
        owners = {m[0] for m in held if m[1] == "held"}
        new_live = tuple(
            "gone" if p in owners and status == "hold" else status
            for p, status in zip(self.processes, live))
        new_jobs = tuple(
            "run:x" if status.startswith("run:") and q + status[4] in owners else status
            for q, status in zip(self.jobs, jobs))
        new_held, new_queue = offers, queue
        if not FORCE_NO_OFFER:
            new_held, new_queue = self.serve_head(offers, queue, jobs_skipped)
        go("force", held=new_held, queue=new_queue, live=new_live, jobs=new_jobs)

    def live_transitions(self, go, s, i, p):
        held, queue, live, rejoined, handed_over, jobs, alive_workers, jobs_skipped, overtaken = s
        status, own_entry = live[i], member(held, p)
        if status in ("idle", "wait"):
            if own_entry:                                              # confirm, or a repeated call
                new_held, new_queue = add(held, p, "held", self.mode[p]), without(queue, p)
                if self.mode[p] != "x" and not NO_RUN:
                    new_held, new_queue = self.serve_head(new_held, new_queue, jobs_skipped)
                go(f"confirm {p}", held=new_held, queue=new_queue, live=put(live, i, "hold"),
                   taker=p)
            else:
                # Its offer lapsed: with its old sequence, once.
                rejoins = status == "wait" and p not in queue and not rejoined[i]
                new_rejoined = put(rejoined, i, True) if rejoins else rejoined
                self.acquire(go, s, i, p, rejoins, "", rejoined=new_rejoined)
                arrives = p in self.with_old_sequence and p not in queue and not rejoins
                if arrives and not (held and held[0][2] == "x"):
                    self.acquire(go, s, i, p, True, " with an old sequence")
            if status == "wait":
                new_held, new_queue = without_owner(held, p), without(queue, p)
                if not NO_LEAVE or own_entry:
                    new_held, new_queue = self.serve_head(new_held, new_queue, jobs_skipped)
                go(f"leave {p}", held=new_held, queue=new_queue, live=put(live, i, "gone"))
                if p not in self.immortal:
                    go(f"crash {p}", live=put(live, i, "dead"))
        if status == "hold" and own_entry and own_entry[1] == "held":
            new_held, new_queue = self.serve_head(without_owner(held, p), queue, jobs_skipped)
            go(f"release {p}", held=new_held, queue=new_queue, live=put(live, i, "gone"))
            if p in self.handing_over and not handed_over[i]:
                released = (new_held, new_queue) + s[2:]
                self.acquire(go, released, i, p, False, " by handover",
                             handed_over=put(handed_over, i, True))
                if own_entry[2] == "x":
                    self.hand_over(go, s, i, p)
            if p in self.downgrading and own_entry[2] == "x":
                downgraded = add(without_owner(held, p), p, "held", "s")
                new_held, new_queue = self.serve_head(downgraded, queue, jobs_skipped)
                go(f"downgrade {p}", held=new_held, queue=new_queue)
            if p not in self.immortal:
                go(f"crash {p}", live=put(live, i, "dead"))
                go(f"pause+expire {p}", held=without_owner(held, p), live=put(live, i, "gone"))
        if status == "gone" and p in self.rearriving:
            go(f"rearrive {p}", live=put(live, i, "idle"), rejoined=put(rejoined, i, False))
        if status == "dead" and p in queue:
            go(f"deadline {p}", queue=without(queue, p))

    def job_transitions(self, go, s, j, q):
        held, queue, live, rejoined, handed_over, jobs, alive_workers, jobs_skipped, overtaken = s
        is_next = jobs[j] == "none" and (j == 0 or jobs[0] != "none")
        if is_next and (held or self.head(queue, jobs_skipped) is not None):
            go(f"defer {q}", queue=queue + (q,), jobs=put(jobs, j, "queued"))
        if jobs[j].startswith("run:"):
            w = jobs[j][4]
            owner = q if JOB_TOKEN else q + w
            if w != "x" and member(held, owner) == (owner, "held", "x"):
                new_held, new_queue = self.serve_head(
                    without_owner(held, owner), without(queue, q), jobs_skipped)
                go(f"ack {q} by {w}", held=new_held, queue=new_queue, jobs=put(jobs, j, "done"))
            elif CLAIM_DEQUEUES and not member(held, q + w) and q not in queue:
                go(f"reclaim {q}", queue=(q,) + queue, jobs=put(jobs, j, "queued"))

    def worker_transitions(self, go, s, w, name):
        held, queue, live, rejoined, handed_over, jobs, alive_workers, jobs_skipped, overtaken = s
        if not alive_workers[w]:
            return go(f"new {name}", alive_workers=put(alive_workers, w, True))
        # A run token ends with its worker.
        orphans = tuple("run:x" if j == f"run:{name}" else j for j in jobs)
        go(f"crash {name}", alive_workers=put(alive_workers, w, False), jobs=orphans)
        if jobs_skipped:
            go(f"show up {name}", jobs_skipped=False)
        for j, q in enumerate(self.jobs):
            first = next((e for e in queue if e in self.jobs), None) == q
            is_head = not held and self.head(queue, jobs_skipped) == q
            free = is_head or member(held, q) == (q, "offered", "x")
            if first and (free or (JOB_TOKEN and member(held, q))):
                other = any(jobs[j] == f"run:{v}" for v in self.workers if v != name)
                other = other and held and held[0][1] == "held"
                owner = q if JOB_TOKEN else q + name
                go(f"claim {q} by {name}", held=add(without_owner(held, q), owner, "held", "x"),
                   queue=without(queue, q) if CLAIM_DEQUEUES else queue, jobs_skipped=False,
                   jobs=put(jobs, j, "TWICE" if other else f"run:{name}"))
        live_head = self.head(queue, jobs_skipped) in tuple(self.processes)
        if not held and live_head and any(e in self.jobs for e in queue) and not NO_NUDGE:
            new_held, new_queue = self.serve_head(held, queue, jobs_skipped)
            go(f"nudge by {name}", held=new_held, queue=new_queue)


# Transitions that the system makes by itself, and transitions after which the head of the queue has
# no entry that fits. (The deadline of a dead process's entry is not among them: it may be far, and
# no waiter should have to wait for it.)
SYSTEM_TRANSITIONS = (
    "confirm", "take", "join", "release", "reclaim", "show up", "claim", "ack", "nudge", "lapse",
    "expire", "window",
)
SERVING_TRANSITIONS = (
    "confirm", "take", "join", "release", "leave", "downgrade", "ack", "nudge", "force",
)


def explore(model):
    seen, edges, todo = {model.init: None}, {}, deque([model.init])
    while todo:
        s = todo.popleft()
        edges[s] = model.transitions(s)
        for a, n, *_ in edges[s]:
            if n not in seen:
                seen[n] = (s, a)
                todo.append(n)
    return seen, edges


def components(nodes, arcs):
    """strongly connected components, without recursion; node -> number"""
    order, done = [], set()
    for root in nodes:
        if root in done:
            continue
        done.add(root)
        stack = [(root, iter(arcs.get(root, ())))]
        while stack:
            node, successors = stack[-1]
            n = next((n for n in successors if n not in done), None)
            if n is None:
                order.append(node)
                stack.pop()
            else:
                done.add(n)
                stack.append((n, iter(arcs.get(n, ()))))
    predecessors = {}
    for a, ns in arcs.items():
        for n in ns:
            predecessors.setdefault(n, []).append(a)
    number, count = {}, 0
    for root in reversed(order):
        if root in number:
            continue
        todo = [root]
        while todo:
            node = todo.pop()
            if node not in number:
                number[node] = count
                todo.extend(predecessors.get(node, ()))
        count += 1
    return number


def phase(model, seen, edges, report):
    """cycles in which x stays in the queue, alive, and a process is admitted before it outside of
    its window"""
    for x in model.processes + model.jobs:
        def stays(s):
            if x not in s[1]:
                return False
            if x in model.processes:
                return s[2][model.processes.index(x)] == "wait"
            is_queued = s[5][model.jobs.index(x)] == "queued" and not member(s[0], x)
            return is_queued and not s[7] and any(s[6])
        nodes = [s for s in seen if stays(s) and not (s[8] and s[8][1] == "open")]
        inside = set(nodes)
        arcs = {s: [n for _, n, *_ in edges[s] if n in inside] for s in nodes}
        number = components(nodes, arcs)
        for s in nodes:
            for a, n, _, taker in edges[s]:
                if taker and n in inside and number[s] == number[n]:
                    report("PHASE cycle", n)


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

    predecessors = {}
    for s, es in edges.items():
        for a, n, *_ in es:
            if a.startswith(SYSTEM_TRANSITIONS):
                predecessors.setdefault(n, []).append(s)

    def can_reach(goal):
        ok, todo = set(), [s for s in seen if goal(s)]
        while todo:
            s = todo.pop()
            if s not in ok:
                ok.add(s)
                todo.extend(predecessors.get(s, ()))
        return ok

    served = [can_reach(lambda s, i=i: s[2][i] != "wait") for i in range(len(model.processes))]
    done = [can_reach(lambda s, j=j: s[5][j] == "done") for j in range(len(model.jobs))]
    for s in seen:
        held, queue, live, rejoined, handed_over, jobs, alive_workers, jobs_skipped, overtaken = s
        modes = {m for _, _, m in held}
        limits = (("x", 1), ("p", PERMITS))
        is_over_limit = any(modes == {mode} and len(held) > limit for mode, limit in limits)
        if len(modes) > 1 or is_over_limit:
            report("MUTEX", s)
        if "TWICE" in jobs:
            report("TWICE", s)
        for a, n, is_new_arrival, taker in edges[s]:
            if a.startswith("claim K") and jobs[0] not in ("none", "done"):
                report("ORDER", n)
            head = model.head(n[1], n[7])
            is_unserved = head and head in model.processes and not member(n[0], head)
            is_unserved = is_unserved and fits(model.mode[head], n[0])
            if a.startswith(SERVING_TRANSITIONS) and is_unserved:
                report("RUN", n)
            processes = model.processes
            stays = [e for e in queue if e in n[1]]
            waits = [e for e in stays if e in processes and live[processes.index(e)] == "wait"]
            if not jobs_skipped:
                waits += [e for e in stays if e in model.jobs and not member(held, e)]
            if is_new_arrival and waits:
                report("PHASE", n)
        for i in range(len(model.processes)):
            if live[i] == "wait" and s not in served[i]:
                report("STUCK live", s)
        for j in range(len(model.jobs)):
            is_pending = jobs[j] in ("queued", "run:V", "run:W", "run:x")
            if is_pending and any(alive_workers) and s not in done[j]:
                report("STUCK job", s)
    phase(model, seen, edges, report)
    return len(seen), bad


def main():
    chosen = [a.split("=", 1)[1] for a in sys.argv if a.startswith("--config=")]
    unknown = [a for a in sys.argv[1:] if a not in FLAGS and not a.startswith("--config=")]
    if unknown or any(name not in CONFIGS for name in chosen):
        sys.exit(__doc__)
    states, caught = 0, []
    for name, config in CONFIGS.items():
        if chosen and name not in chosen:
            continue
        count, bad = check(Model(**config))
        states += count
        print(f"{name}: {count} states, bad {sum(bad.values())} {' '.join(sorted(bad))}".rstrip())
        if bad:
            caught.append(name)
    print(f"{states} states, bad in: {', '.join(caught)}" if caught else f"{states} states, bad 0")
    return 1 if caught else 0


if __name__ == "__main__":
    sys.exit(main())
