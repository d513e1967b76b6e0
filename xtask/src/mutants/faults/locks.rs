//! Faults in locks: both stores and the engine.

use super::{SourceFault, edit, scenario_tests, unit_tests};

pub(super) const FAULTS: &[SourceFault] = &[
    SourceFault {
        name: "release-by-any-token-lua",
        table_row: "l10",
        broken_behavior: "a release takes the lock of the next holder",
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
        suites: &[unit_tests(&["store::"])],
    },
    SourceFault {
        name: "release-by-any-token-memory",
        table_row: "l10",
        broken_behavior: "a release takes the lock of the next holder",
        edits: &[edit(
            "src/store/memory/lock_commands.rs",
            "self.lock.remove_holder(&holder) | had_offer;",
            "if FAULT {\n            !std::mem::take(&mut self.lock.holders).is_empty()\n        } else {\n            self.lock.remove_holder(&holder) | had_offer\n        };",
        )],
        suites: &[unit_tests(&["store::tests", "lock::"])],
    },
    SourceFault {
        name: "forced-release-offers-nothing-lua",
        table_row: "l10",
        broken_behavior: "a waiter is not told of a lock that an operator has released",
        edits: &[edit(
            "src/store/lua/force_release.lua",
            "if released > 0 and not has_more then offer_next() end",
            "",
        )],
        suites: &[unit_tests(&["forced_release"])],
    },
    SourceFault {
        name: "forced-release-keeps-holders-memory",
        table_row: "l10",
        broken_behavior: "a holder whose lock an operator has released still has it",
        edits: &[edit(
            "src/store/memory/lock_inspection.rs",
            "                released += 1;\n                false\n",
            "                released += 1;\n                FAULT\n",
        )],
        suites: &[unit_tests(&["forced_release"])],
    },
    SourceFault {
        name: "forced-release-tells-nobody-lua",
        table_row: "l10",
        broken_behavior: "a holder learns of a forced release when it renews its lease",
        edits: &[edit(
            "src/store/lua/force_release.lua",
            "    redis.call(PUBLISH_COMMAND, CHANNEL_PREFIX .. 'w:' .. node, 'x ' .. LOCK_NAME)\n",
            "",
        )],
        suites: &[scenario_tests(&["forced_release"])],
    },
    SourceFault {
        name: "renewal-revives-lua",
        table_row: "l11",
        broken_behavior: "a late renewal revives a lost lock",
        edits: &[edit("src/store/lua/renew.lua", "if deadline_ms > now_ms then", "if true then")],
        suites: &[unit_tests(&["store::"])],
    },
    SourceFault {
        name: "renewal-revives-memory",
        table_row: "l11",
        broken_behavior: "a late renewal revives a lost lock",
        edits: &[edit(
            "src/store/memory/lock_holders_and_queue.rs",
            "self.deadline_of(&member).filter(|deadline| *deadline > now.ms)?",
            "(if FAULT { self.deadline_of(&member).unwrap_or(0) } else { ORIGINAL })",
        )],
        suites: &[unit_tests(&["store::tests", "lock::"])],
    },
    SourceFault {
        name: "fence-by-clock-lua",
        table_row: "l13",
        broken_behavior: "the next fence is the server's time, even below the last fence",
        edits: &[edit(
            "src/store/lua/lock_batch_fast.lua",
            "      if next_unused > now_us then\n        fence = format",
            "      if false then\n        fence = format",
        )],
        suites: &[unit_tests(&["store::"])],
    },
    SourceFault {
        name: "fence-by-clock-memory",
        table_row: "l13",
        broken_behavior: "two grants at the same server time have the same fence",
        edits: &[edit(
            "src/store/memory/lock_transaction.rs",
            "(self.shard.highest_fence + 1).max(self.now.us)",
            "if FAULT { self.now.us } else { ORIGINAL }",
        )],
        suites: &[unit_tests(&["store::tests", "lock::"])],
    },
    SourceFault {
        name: "one-permit-too-many-lua",
        table_row: "l9",
        broken_behavior: "one holder more than there are permits",
        edits: &[edit(
            "src/store/lua/wait_queue.lua",
            "redis.call('ZCARD', HOLDERS) < (limit or 1)",
            "redis.call('ZCARD', HOLDERS) <= (limit or 1)",
        )],
        suites: &[unit_tests(&["store::tests"])],
    },
    SourceFault {
        name: "one-permit-too-many-memory",
        table_row: "l9",
        broken_behavior: "one holder more than there are permits",
        edits: &[edit(
            "src/store/memory/lock_transaction.rs",
            "self.lock.holders.len() < max_permits as usize",
            "self.lock.holders.len() < max_permits as usize + usize::from(FAULT)",
        )],
        suites: &[unit_tests(&["store::tests", "lock::"])],
    },
    SourceFault {
        name: "reader-passes-writer-lua",
        table_row: "l21",
        broken_behavior: "a flood of readers keeps a waiting writer out",
        edits: &[edit(
            "src/store/lua/acquire.lua",
            "if not first_sequence or first_token == token\n",
            "if not first_sequence or mode == 's' or first_token == token\n",
        )],
        suites: &[unit_tests(&["store::tests"])],
    },
    SourceFault {
        name: "reader-passes-writer-memory",
        table_row: "l21",
        broken_behavior: "a flood of readers keeps a waiting writer out",
        edits: &[edit(
            "src/store/memory/lock_commands.rs",
            "self.is_first_in_queue(token, resume_seq)",
            "(FAULT && *mode == LockMode::Shared || ORIGINAL)",
        )],
        suites: &[unit_tests(&["store::tests", "lock::"])],
    },
    SourceFault {
        name: "offer-not-published",
        table_row: "l7",
        broken_behavior: "a waiter finds its offer only at its next poll",
        edits: &[edit(
            "src/store/lua/wait_queue.lua",
            "      redis.call(\n        PUBLISH_COMMAND, CHANNEL_PREFIX .. 'w:' .. string.match(token, ':(%x+)$'),\n        'o ' .. LOCK_NAME .. ' ' .. token\n      )\n",
            "",
        )],
        suites: &[unit_tests(&["store::"])],
    },
    SourceFault {
        name: "dropped-call-not-undone",
        table_row: "l4",
        broken_behavior: "a dropped waiter keeps its queue entry, or the lock",
        edits: &[edit(
            "src/store/grant_attempt.rs",
            "if !self.may_have_grant && self.late_calls.is_none() {",
            "if FAULT || !self.may_have_grant && self.late_calls.is_none() {",
        )],
        suites: &[unit_tests(&["lock::tests", "store::redis::tests"])],
    },
    SourceFault {
        name: "dropped-guard-not-released",
        table_row: "l3",
        broken_behavior: "a client that disconnects keeps the lock for its lease",
        edits: &[edit(
            "src/store/owned_hold.rs",
            "        self.start_release(None);\n    }\n}",
            "        if FAULT {\n            self.close_without_release();\n        }\n        ORIGINAL",
        )],
        suites: &[unit_tests(&["lock::tests"]), scenario_tests(&["lock_release::"])],
    },
    SourceFault {
        name: "no-renewal",
        table_row: "l12",
        broken_behavior: "a lock ends after one lease, while its holder works",
        edits: &[edit(
            "src/store/renewal_scheduler.rs",
            "!past_end && lease.skip_renewal_if_unreceived()",
            "!past_end && (FAULT || lease.skip_renewal_if_unreceived())",
        )],
        suites: &[unit_tests(&["lock::tests"])],
    },
    SourceFault {
        name: "loss-not-reported",
        table_row: "l2",
        broken_behavior: "a holder gets no report that its lock is lost",
        edits: &[edit(
            "src/store/lock_lease.rs",
            "if let Some(hold) = hold {",
            "if let Some(hold) = hold.filter(|_| !FAULT) {",
        )],
        suites: &[unit_tests(&["lock::tests"])],
    },
    SourceFault {
        name: "loss-reported-after-release",
        table_row: "l11",
        broken_behavior: "a renewal overtaken by a release reports a loss",
        edits: &[edit(
            "src/store/owned_hold.rs",
            "        self.close();\n        let outcome = self.store.backend().release(",
            "        if !FAULT {\n            self.close();\n        }\n        let outcome = self.store.backend().release(",
        )],
        suites: &[unit_tests(&["lock::tests"])],
    },
    SourceFault {
        name: "handovers-without-end",
        table_row: "l20",
        broken_behavior: "handovers overtake other processes and use more fences than reserved",
        edits: &[edit(
            "src/lock/local_wait_queue/queue_snapshot.rs",
            "self.remaining = self.remaining.checked_sub(1)?;",
            "self.remaining = if FAULT { self.remaining } else { self.remaining.checked_sub(1)? };",
        )],
        suites: &[unit_tests(&["lock::"])],
    },
    SourceFault {
        name: "permits-cover-fewer",
        table_row: "l22",
        broken_behavior: "permits(1) nested in permits(10) of one key admits several holders",
        edits: &[edit(
            "src/lock/held_locks.rs",
            "(LockMode::Permits(has), LockMode::Permits(wanted)) => has <= wanted,",
            "(LockMode::Permits(has), LockMode::Permits(wanted)) => has <= wanted || FAULT,",
        )],
        suites: &[unit_tests(&["lock::"])],
    },
    SourceFault {
        name: "lock-set-in-any-order",
        table_row: "l22",
        broken_behavior: "two requests for the same locks wait for each other",
        edits: &[edit(
            "src/lock/lock_set_request.rs",
            "ordered_keys.sort_by(|(_, first), (_, second)| LockSet::compare_keys(first, second));",
            "if !FAULT {\n            ORIGINAL\n        }",
        )],
        suites: &[unit_tests(&["lock::tests"])],
    },
    SourceFault {
        name: "delegation-unsigned",
        table_row: "l22",
        broken_behavior: "a forged delegation header is accepted as the lock of the caller",
        edits: &[edit(
            "src/lock/delegation_header.rs",
            ".any(|secret| secret.mac(claims)",
            ".any(|secret| FAULT || secret.mac(claims)",
        )],
        suites: &[unit_tests(&["lock::"])],
    },
    SourceFault {
        name: "lock-of-other-server-is-held",
        table_row: "l22",
        broken_behavior: "the lock of a run is accepted in place of a lock of another server",
        edits: &[edit(
            "src/gate/replay_marker.rs",
            "self.store().is_same_as(store) == Some(true);",
            "(FAULT || self.store().is_same_as(store) == Some(true));",
        )],
        suites: &[scenario_tests(&["reentrant_locks::", "remote_replay::", "replay::"])],
    },
];
