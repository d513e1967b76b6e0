//! Locks: both stores, and the engine.

use super::{Fault, edit, rows, unit};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "release-by-any-token-lua",
        row: "l10",
        breaks: "a release takes the lock of the next holder",
        edits: &[
            edit(
                "src/store/lua/release.lua",
                "local held = redis.call('ZSCORE', HOLDERS, 'h' .. mode_tag .. token)\n",
                "local held = redis.call('ZRANGE', HOLDERS, '0', '0', 'WITHSCORES')[2]\n",
            ),
            edit(
                "src/store/lua/release.lua",
                "redis.call('ZREM', HOLDERS, 'h' .. mode_tag .. token)",
                "redis.call('DEL', HOLDERS)",
            ),
        ],
        suites: &[unit(&["store::"])],
    },
    Fault {
        name: "release-by-any-token-memory",
        row: "l10",
        breaks: "a release takes the lock of the next holder",
        edits: &[edit(
            "src/store/memory/lock_commands.rs",
            "self.lock.remove_holder(&holds) | offered;",
            "if FAULT {\n            !std::mem::remove_holder(&mut self.lock.holders).is_empty()\n        } else {\n            self.lock.remove_holder(&holds) | offered\n        };",
        )],
        suites: &[unit(&["store::tests", "lock::"])],
    },
    Fault {
        name: "renewal-revives-lua",
        row: "l11",
        breaks: "a renewal that comes late takes a lost lock again",
        edits: &[edit("src/store/lua/renew.lua", "if deadline_ms > now_ms then", "if true then")],
        suites: &[unit(&["store::"])],
    },
    Fault {
        name: "renewal-revives-memory",
        row: "l11",
        breaks: "a renewal that comes late takes a lost lock again",
        edits: &[edit(
            "src/store/memory/lock_state.rs",
            "self.deadline_of(&member).filter(|end| *end > now.ms)?",
            "(if FAULT { self.deadline_of(&member).unwrap_or(0) } else { ORIGINAL })",
        )],
        suites: &[unit(&["store::tests", "lock::"])],
    },
    Fault {
        name: "fence-by-clock-lua",
        row: "l13",
        breaks: "the next fence is the server's time, whatever the last one was",
        edits: &[edit(
            "src/store/lua/lock_batch_fast.lua",
            "      if next_unused > now_us then\n        fence = format",
            "      if false then\n        fence = format",
        )],
        suites: &[unit(&["store::"])],
    },
    Fault {
        name: "fence-by-clock-memory",
        row: "l13",
        breaks: "two grants of one moment have the same fence",
        edits: &[edit(
            "src/store/memory/lock_transaction.rs",
            "(self.shard.highest_fence + 1).max(self.now.us)",
            "if FAULT { self.now.us } else { ORIGINAL }",
        )],
        suites: &[unit(&["store::tests", "lock::"])],
    },
    Fault {
        name: "one-permit-too-many-lua",
        row: "l9",
        breaks: "one holder more than there are permits",
        edits: &[edit(
            "src/store/lua/wait_queue.lua",
            "redis.call('ZCARD', HOLDERS) < (limit or 1)",
            "redis.call('ZCARD', HOLDERS) <= (limit or 1)",
        )],
        suites: &[unit(&["store::tests"])],
    },
    Fault {
        name: "one-permit-too-many-memory",
        row: "l9",
        breaks: "one holder more than there are permits",
        edits: &[edit(
            "src/store/memory/lock_transaction.rs",
            "self.lock.holders.len() < most as usize",
            "self.lock.holders.len() < most as usize + usize::from(FAULT)",
        )],
        suites: &[unit(&["store::tests", "lock::"])],
    },
    Fault {
        name: "reader-passes-writer-lua",
        row: "l21",
        breaks: "a flood of readers keeps a waiting writer out",
        edits: &[edit(
            "src/store/lua/acquire.lua",
            "if not first_sequence or first_token == token\n",
            "if not first_sequence or mode == 's' or first_token == token\n",
        )],
        suites: &[unit(&["store::tests"])],
    },
    Fault {
        name: "reader-passes-writer-memory",
        row: "l21",
        breaks: "a flood of readers keeps a waiting writer out",
        edits: &[edit(
            "src/store/memory/lock_commands.rs",
            "self.is_first_in_queue(me, old_seq)",
            "(FAULT && *mode == Mode::Shared || ORIGINAL)",
        )],
        suites: &[unit(&["store::tests", "lock::"])],
    },
    Fault {
        name: "offer-not-told",
        row: "l7",
        breaks: "a waiter learns of its turn by looking again",
        edits: &[edit(
            "src/store/lua/wait_queue.lua",
            "      redis.call(\n        PUBLISH_COMMAND, CHANNEL_PREFIX .. 'w:' .. string.match(token, ':(%x+)$'),\n        'o ' .. LOCK_NAME .. ' ' .. token\n      )\n",
            "",
        )],
        suites: &[unit(&["store::"])],
    },
    Fault {
        name: "dropped-call-not-undone",
        row: "l4",
        breaks: "a waiter that leaves keeps its place, or the lock",
        edits: &[edit(
            "src/store/grant_attempt.rs",
            "if !self.may_have_grant && self.late_calls.is_none() {",
            "if FAULT || !self.may_have_grant && self.late_calls.is_none() {",
        )],
        suites: &[unit(&["lock::tests", "store::redis::tests"])],
    },
    Fault {
        name: "dropped-guard-not-given-back",
        row: "l3",
        breaks: "a client that leaves keeps the lock for its lease",
        edits: &[edit(
            "src/store/lock_hold.rs",
            "        self.start_release(None);\n    }\n}",
            "        if FAULT {\n            self.forget();\n        }\n        ORIGINAL",
        )],
        suites: &[unit(&["lock::tests"]), rows(&["end_of_lock::"])],
    },
    Fault {
        name: "no-renewal",
        row: "l12",
        breaks: "a lock ends after one lease, while its holder works",
        edits: &[edit(
            "src/store/renewal_scheduler.rs",
            "!past_end && hold.skip_renewal_if_unreceived()",
            "!past_end && (FAULT || hold.skip_renewal_if_unreceived())",
        )],
        suites: &[unit(&["lock::tests"])],
    },
    Fault {
        name: "loss-not-told",
        row: "l2",
        breaks: "a holder does not hear that its lock is lost",
        edits: &[edit(
            "src/store/lock_lease.rs",
            "if let Some(turn) = turn {",
            "if let Some(turn) = turn.filter(|_| !FAULT) {",
        )],
        suites: &[unit(&["lock::tests"])],
    },
    Fault {
        name: "loss-told-of-released",
        row: "l11",
        breaks: "a renewal that a release overtakes tells of a loss",
        edits: &[edit(
            "src/store/lock_hold.rs",
            "        self.close();\n        let outcome = self.store.backend().release(",
            "        if !FAULT {\n            self.close();\n        }\n        let outcome = self.store.backend().release(",
        )],
        suites: &[unit(&["lock::tests"])],
    },
    Fault {
        name: "handovers-without-end",
        row: "l20",
        breaks: "a lock passes within a process past others, beyond its fences",
        edits: &[edit(
            "src/lock/wait_queue/queue_snapshot.rs",
            "self.remaining = self.remaining.checked_sub(1)?;",
            "self.remaining = if FAULT { self.remaining } else { self.remaining.checked_sub(1)? };",
        )],
        suites: &[unit(&["lock::"])],
    },
    Fault {
        name: "permits-cover-fewer",
        row: "l22",
        breaks: "permits(1) within permits(10) of one key lets several in",
        edits: &[edit(
            "src/lock/held_locks.rs",
            "(LockMode::Permits(has), LockMode::Permits(wanted)) => has <= wanted,",
            "(LockMode::Permits(has), LockMode::Permits(wanted)) => has <= wanted || FAULT,",
        )],
        suites: &[unit(&["lock::"])],
    },
    Fault {
        name: "several-in-any-order",
        row: "l22",
        breaks: "two requests for the same locks wait for each other",
        edits: &[edit(
            "src/lock/lock_set.rs",
            "order.sort_by(|(_, one), (_, other)| LockSet::compare_keys(one, other));",
            "if !FAULT {\n            ORIGINAL\n        }",
        )],
        suites: &[unit(&["lock::tests"])],
    },
    Fault {
        name: "held-header-unsigned",
        row: "l22",
        breaks: "a forged header passes for a lock of the caller",
        edits: &[edit(
            "src/lock/delegation.rs",
            "secrets.iter().any(|secret| secret.mac(text)",
            "secrets.iter().any(|secret| FAULT || secret.mac(text)",
        )],
        suites: &[unit(&["lock::"])],
    },
    Fault {
        name: "lock-of-other-server-is-held",
        row: "l22",
        breaks: "a run has the lock of its server for one of another server",
        edits: &[edit(
            "src/gate/replay_marker.rs",
            "self.store().is_same_as(store) == Some(true);",
            "(FAULT || self.store().is_same_as(store) == Some(true));",
        )],
        suites: &[rows(&["within::", "elsewhere::", "replay::"])],
    },
];
