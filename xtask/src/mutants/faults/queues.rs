//! Faults in task queues.

use super::{SourceFault, edit, unit_tests, worker_tests};

pub(super) const FAULTS: &[SourceFault] = &[
    SourceFault {
        name: "early-task-wakes-nobody",
        table_row: "tasks",
        broken_behavior: "a task that an operator lets run now waits for its old due time",
        edits: &[edit(
            "src/store/lua/tasks_cancel_redrive_purge_pause.lua",
            "call('ZADD', WAITING, integer(sequence), id)\n    wake_timer_worker()",
            "call('ZADD', WAITING, integer(sequence), id)",
        )],
        suites: &[unit_tests(&["store::tests::tasks"])],
    },
    SourceFault {
        name: "woken-worker-counts-as-missing",
        table_row: "tasks",
        broken_behavior: "a warning that no worker polls, while a worker that was woken is about to",
        edits: &[edit(
            "src/store/lua/tasks_inspect.lua",
            "meta[1] or tonumber(meta[2] or '0') > now_us - tonumber(ARGV[2])",
            "meta[1]",
        )],
        suites: &[unit_tests(&["store::tests::tasks"])],
    },
    SourceFault {
        name: "cancelled-task-keeps-its-unique-key",
        table_row: "tasks",
        broken_behavior: "a cancelled run keeps the unique key of its deleted task",
        edits: &[edit(
            "src/store/lua/tasks_settle_and_poll.lua",
            "    if settlement.kind == 'c' then\n      slow_path.release_unique_key(settlement.unique_key, settlement.id)\n",
            "    if settlement.kind == 'c' then\n",
        )],
        suites: &[unit_tests(&["store::tests::tasks"])],
    },
    SourceFault {
        name: "drained-worker-starts-tasks",
        table_row: "tasks",
        broken_behavior: "a process that an operator has drained starts tasks",
        edits: &[edit(
            "src/queue/queue_worker_loop.rs",
            "self.is_draining || self.worker.store.is_drained()",
            "self.is_draining || (self.worker.store.is_drained() && !FAULT)",
        )],
        suites: &[worker_tests(&["process_drain"])],
    },
    SourceFault {
        name: "late-end-lua",
        table_row: "tasks",
        broken_behavior: "a worker that has lost its run ends the task",
        edits: &[edit(
            "src/store/lua/tasks_settle_and_poll.lua",
            "outcomes = tostring(call('ZREM', LEASES, run))",
            "call('ZREM', LEASES, run)\n    outcomes = '1'",
        )],
        suites: &[unit_tests(&["store::"])],
    },
    SourceFault {
        name: "late-end-memory",
        table_row: "tasks",
        broken_behavior: "a worker that has lost its run ends the task",
        edits: &[edit(
            "src/store/memory/tasks/settled_and_expired_runs.rs",
            "if self.queue.running.get(&settlement.run).is_none() {",
            "if !FAULT && self.queue.running.get(&settlement.run).is_none() {",
        )],
        suites: &[unit_tests(&["store::tests", "queue::"])],
    },
    SourceFault {
        name: "once-task-runs-again-lua",
        table_row: "tasks",
        broken_behavior: "a task that may run once runs again after a crash",
        edits: &[edit(
            "src/store/lua/tasks_settle_and_poll.lua",
            "if is_repeatable == '0' or attempts",
            "if attempts",
        )],
        suites: &[unit_tests(&["store::"])],
    },
    SourceFault {
        name: "once-task-runs-again-memory",
        table_row: "tasks",
        broken_behavior: "a task that may run once runs again after a crash",
        edits: &[edit(
            "src/store/memory/tasks/settled_and_expired_runs.rs",
            "if !may_repeat\n                || history.attempts",
            "if !may_repeat && !FAULT\n                || history.attempts",
        )],
        suites: &[unit_tests(&["store::tests", "queue::"])],
    },
    SourceFault {
        name: "lost-run-renewed",
        table_row: "tasks",
        broken_behavior: "a renewal reports a lost run as still held",
        edits: &[edit(
            "src/store/lua/tasks_renew.lua",
            "results[i] = lease_end and '1' or '0'",
            "results[i] = '1'",
        )],
        suites: &[unit_tests(&["store::", "queue::"])],
    },
    SourceFault {
        name: "one-attempt-too-many",
        table_row: "tasks",
        broken_behavior: "a task that fails runs once more than it may",
        edits: &[edit(
            "src/queue/task_run.rs",
            "_ if attempt >= max_attempts =>",
            "_ if *attempt >= max_attempts + u32::from(FAULT) =>",
        )],
        suites: &[unit_tests(&["queue::"])],
    },
    SourceFault {
        name: "pushed-twice",
        table_row: "tasks",
        broken_behavior: "a push that is sent again stores its task again",
        edits: &[
            edit(
                "src/store/lua/tasks_push_one_nonunique.lua",
                "    if stored_number == own_number then return '1' end\n",
                "",
            ),
            edit(
                "src/store/lua/tasks_push.lua",
                "elseif slot_number < push_number then",
                "elseif slot_number <= push_number then",
            ),
        ],
        suites: &[unit_tests(&["store::"])],
    },
    SourceFault {
        name: "unreadable-payload-pushed",
        table_row: "tasks",
        broken_behavior: "a task is pushed that no worker can read",
        edits: &[edit(
            "src/queue/queue_handle.rs",
            "if cfg!(debug_assertions)\n",
            "if cfg!(debug_assertions)\n        && !FAULT\n",
        )],
        suites: &[unit_tests(&["queue::"])],
    },
    SourceFault {
        name: "lost-run-goes-on",
        table_row: "tasks",
        broken_behavior: "a run that its worker has lost is not cancelled",
        edits: &[
            edit(
                "src/queue/renew_run_leases.rs",
                "(Some(_), false) => self.cancel_run(&token),",
                "(Some(_), false) if FAULT => {}\n                ORIGINAL",
            ),
            edit(
                "src/queue/renew_run_leases.rs",
                "lost.iter().for_each(|token| self.cancel_run(token));",
                "if !FAULT {\n            ORIGINAL\n        }",
            ),
        ],
        suites: &[unit_tests(&["queue::"])],
    },
];
