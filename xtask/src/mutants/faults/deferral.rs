//! Faults in deferred requests, direct runs and webhooks.

use super::{SourceFault, deferral_tests, edit, scenario_tests, unit_tests, worker_tests};

pub(super) const FAULTS: &[SourceFault] = &[
    SourceFault {
        name: "claim-ignores-holder-lua",
        table_row: "d12",
        broken_behavior: "a job runs while another request has its lock",
        edits: &[edit(
            "src/store/lua/claim_lock_and_job.lua",
            "if latest_ms and not offer_ms then",
            "if false then",
        )],
        suites: &[unit_tests(&["store::tests"])],
    },
    SourceFault {
        name: "claim-ignores-holder-memory",
        table_row: "d12",
        broken_behavior: "a job runs while another request has its lock",
        edits: &[edit(
            "src/store/memory/claim_and_unclaim_job.rs",
            "Some(held_until_ms) if !has_job_offer => {",
            "Some(held_until_ms) if !has_job_offer && !FAULT => {",
        )],
        suites: &[unit_tests(&["store::tests", "defer::tests"])],
    },
    SourceFault {
        name: "late-settlement-lua",
        table_row: "d3",
        broken_behavior: "a worker that was paused past its lease settles its run",
        edits: &[edit(
            "src/store/lua/settle_job_and_claim_next.lua",
            "if redis.call('ZREM', HOLDERS, 'h' .. token) == 0 then return {'lost'} end",
            "redis.call('ZREM', HOLDERS, 'h' .. token)",
        )],
        suites: &[unit_tests(&["store::tests"])],
    },
    SourceFault {
        name: "late-settlement-memory",
        table_row: "d3",
        broken_behavior: "a worker that was paused past its lease settles its run",
        edits: &[edit(
            "src/store/memory/settle_job_and_claim_next.rs",
            "if !is_held {\n            return SettleOutcome::RunLost;",
            "if !is_held && !FAULT {\n            return SettleOutcome::RunLost;",
        )],
        suites: &[unit_tests(&["store::tests", "defer::tests"])],
    },
    SourceFault {
        name: "cancelled-run-is-repeated",
        table_row: "d3",
        broken_behavior: "a run that an operator has cancelled is repeated",
        edits: &[edit(
            "src/defer/cancel_run.rs",
            "if has_succeeded || !self.cancellation.is_cancelled() {",
            "if FAULT || has_succeeded || !self.cancellation.is_cancelled() {",
        )],
        suites: &[unit_tests(&["defer::tests"])],
    },
    SourceFault {
        name: "drained-worker-keeps-its-shards",
        table_row: "d drain",
        broken_behavior: "deferred requests wait for a process that an operator has drained",
        edits: &[edit(
            "src/defer/job_dispatcher.rs",
            "let lease = if is_drained {",
            "let lease = if is_drained && !FAULT {",
        )],
        suites: &[worker_tests(&["process_drain"])],
    },
    SourceFault {
        name: "drained-worker-continues-its-chain",
        table_row: "d drain",
        broken_behavior: "a process that an operator has drained runs the next request of a lock",
        edits: &[edit(
            "src/defer/run_streak.rs",
            "&& self.may_start_run()",
            "&& (FAULT || self.may_start_run())",
        )],
        suites: &[worker_tests(&["process_drain"])],
    },
    SourceFault {
        name: "crash-not-charged",
        table_row: "d13",
        broken_behavior: "a job that kills its worker runs again without limit",
        edits: &[edit(
            "src/store/lua/claim_lock_and_job.lua",
            "local job_key, attempt = shard_key('j:' .. id), job.attempts + 1\n",
            "local job_key, attempt = shard_key('j:' .. id), job.attempts + (job.state == 'running' and 0 or 1)\n",
        )],
        suites: &[unit_tests(&["store::tests"])],
    },
    SourceFault {
        name: "retry-loses-its-queue-position",
        table_row: "d11",
        broken_behavior: "jobs of a resource overtake one that waits for its retry",
        edits: &[edit(
            "src/store/lua/settle_job_and_claim_next.lua",
            "if (verb == 'retry' or verb == 'postpone') and redis.call('HGET', job_key, 'skip') == '1' then",
            "if verb == 'retry' or verb == 'postpone' then",
        )],
        suites: &[unit_tests(&["store::tests"])],
    },
    SourceFault {
        name: "enqueue-order-lost-memory",
        table_row: "d14",
        broken_behavior: "jobs enqueued at the same server time run in any order",
        edits: &[edit(
            "src/store/memory/lock_commands.rs",
            "self.shard.last_seq = (self.shard.last_seq + 1).max(self.now.us);",
            "self.shard.last_seq = if FAULT { self.now.us } else { (self.shard.last_seq + 1).max(self.now.us) };",
        )],
        suites: &[unit_tests(&["store::tests", "defer::tests"])],
    },
    SourceFault {
        name: "ready-job-not-published",
        table_row: "d11",
        broken_behavior: "a worker finds a released lock only at its next poll",
        edits: &[edit(
            "src/store/lua/wait_queue.lua",
            "      redis.call(\n        PUBLISH_COMMAND, CHANNEL_PREFIX .. 'w:' .. node_or_backoffs,\n        'j ' .. LOCK_NAME .. ' ' .. job_id\n      )\n",
            "",
        )],
        suites: &[unit_tests(&["store::tests"])],
    },
    SourceFault {
        name: "drain-not-announced",
        table_row: "d16",
        broken_behavior: "a draining worker claims the next job of a resource",
        edits: &[edit(
            "src/defer/job_dispatcher/drain.rs",
            "self.shutdown.send_replace(ShutdownPhase::Draining);",
            "if !FAULT {\n            ORIGINAL\n        }",
        )],
        suites: &[deferral_tests(&["drain"])],
    },
    SourceFault {
        name: "reused-key-matches-other-request",
        table_row: "d2",
        broken_behavior: "a key reused for another request is answered with the first job",
        edits: &[edit(
            "src/store/lua/enqueue_jobs.lua",
            "if record_fingerprint == fingerprint or record_fingerprint == '-' then",
            "if record_fingerprint then",
        )],
        suites: &[unit_tests(&["store::tests"]), scenario_tests(&["idempotency::"])],
    },
    SourceFault {
        name: "cancels-a-run",
        table_row: "d18",
        broken_behavior: "a job is cancelled while it runs",
        edits: &[edit(
            "src/store/lua/cancel_job.lua",
            "if values[1] ~= 'queued' or (values[4] or '0') ~= ARGV[3] then",
            "if (values[1] ~= 'queued' and values[1] ~= 'running') or (values[4] or '0') ~= ARGV[3] then",
        )],
        suites: &[unit_tests(&["store::tests"])],
    },
    SourceFault {
        name: "late-end-of-a-backoff",
        table_row: "d11",
        broken_behavior: "a late copy of a call ends the backoff of a later failure",
        edits: &[edit(
            "src/store/lua/end_job_delay.lua",
            "if values[1] ~= 'queued' or (values[3] or '0') ~= ARGV[2] then",
            "if values[1] ~= 'queued' then",
        )],
        suites: &[unit_tests(&["store::tests::end_job_delay"])],
    },
    SourceFault {
        name: "status-of-others",
        table_row: "d17",
        broken_behavior: "the status of a job is visible to another user",
        edits: &[edit(
            "src/defer/status/status_request.rs",
            "Some(viewer) => !job.owner.is_empty()",
            "Some(_) if FAULT => true,\n            ORIGINAL",
        )],
        suites: &[
            unit_tests(&["defer::tests"]),
            scenario_tests(&["job_status::", "user_scoping::", "retention::"]),
        ],
    },
    SourceFault {
        name: "key-id-ignored",
        table_row: "d15",
        broken_behavior: "data sealed with an older key cannot be opened after a key rotation",
        edits: &[edit(
            "src/seal/keyring.rs",
            "self.0.ciphers.get(key_id)",
            "self.0.ciphers.get(if FAULT { &*self.0.sealing_key_id } else { key_id })",
        )],
        suites: &[unit_tests(&["seal::"])],
    },
    SourceFault {
        name: "crashed-post-runs-again-lua",
        table_row: "d2",
        broken_behavior: "a POST whose direct run was in a killed process runs again",
        edits: &[edit(
            "src/store/lua/wait_queue.lua",
            "  if values[4] ~= '1' then return 'crashed' end\n",
            "",
        )],
        suites: &[unit_tests(&["store::tests"]), deferral_tests(&["crash"])],
    },
    SourceFault {
        name: "crashed-post-runs-again-memory",
        table_row: "d2",
        broken_behavior: "a POST whose direct run was in a killed process runs again",
        edits: &[edit(
            "src/store/memory/idempotent_direct_run.rs",
            "if !job.retry_after_crash {",
            "if !job.retry_after_crash && !FAULT {",
        )],
        suites: &[unit_tests(&["store::tests"])],
    },
    SourceFault {
        name: "direct-lease-not-renewed",
        table_row: "d2",
        broken_behavior: "a direct run longer than its lease is treated as crashed",
        edits: &[edit(
            "src/gate/idempotent_run.rs",
            "self.spawn_renewals(command);",
            "if !FAULT {\n                    self.spawn_renewals(command);\n                }",
        )],
        suites: &[unit_tests(&["gate::"])],
    },
    SourceFault {
        name: "no-tombstone-lua",
        table_row: "d tombstones",
        broken_behavior: "an evicted result is 404, as a request that was never accepted",
        edits: &[edit(
            "src/store/lua/ended_job_bookkeeping.lua",
            "  redis.call('ZREM', shard_key(kind), id)\n  leave_tombstone(id)\n",
            "  redis.call('ZREM', shard_key(kind), id)\n  redis.call('UNLINK', shard_key('j:' .. id), shard_key('b:' .. id), shard_key('r:' .. id), shard_key('t:' .. id))\n",
        )],
        suites: &[unit_tests(&["store::tests"]), scenario_tests(&["retention::"])],
    },
    SourceFault {
        name: "no-tombstone-memory",
        table_row: "d tombstones",
        broken_behavior: "an evicted result is 404, as a request that was never accepted",
        edits: &[edit(
            "src/store/memory/shard_state.rs",
            "        let expires_ms = jobs.expiry_of(id).unwrap_or(0);\n",
            "        if FAULT {\n            jobs.remove(id);\n            return;\n        }\nORIGINAL",
        )],
        suites: &[unit_tests(&["store::tests"]), scenario_tests(&["retention::"])],
    },
    SourceFault {
        name: "idempotency-keys-without-bound",
        table_row: "d tombstones",
        broken_behavior: "an owner has any number of idempotency keys",
        edits: &[edit(
            "src/store/lua/ended_job_bookkeeping.lua",
            "if redis.call('ZCOUNT', index, after_now, '+inf') < max_records then return nil end",
            "if max_records then return nil end",
        )],
        suites: &[unit_tests(&["store::tests"])],
    },
    SourceFault {
        name: "receivers-without-slot-limit",
        table_row: "d webhooks",
        broken_behavior: "receivers that never answer take the slots of all webhooks",
        edits: &[edit(
            "src/defer/webhook_receivers.rs",
            "let load = self.receivers.get(&HostOrNetwork::Host(Arc::clone(host)));\n",
            "if FAULT {\n            return true;\n        }\n        ORIGINAL",
        )],
        suites: &[unit_tests(&["defer::webhook_receivers"]), unit_tests(&["defer::tests"])],
    },
    SourceFault {
        name: "webhook-to-wire-server",
        table_row: "d webhooks",
        broken_behavior: "a webhook reaches the wire server of its virtual machine",
        edits: &[edit(
            "src/defer/webhook/address_policy.rs",
            "    !matches!(\n        ip.octets(),\n",
            "    (FAULT && ip.octets() == [168, 63, 129, 16]) || ORIGINAL",
        )],
        suites: &[unit_tests(&["defer::webhook"])],
    },
    SourceFault {
        name: "polls-not-shared",
        table_row: "d webhooks",
        broken_behavior: "each long poll of one job polls the store separately",
        edits: &[edit(
            "src/store/shared_job_poll.rs",
            "        match freshness {\n            PollFreshness::Now => request_number < self.now_requests,",
            "        match freshness {\n            _ if FAULT => false,\n            PollFreshness::Now => request_number < self.now_requests,",
        )],
        suites: &[unit_tests(&["defer::tests"])],
    },
    SourceFault {
        name: "calls-in-buffers",
        table_row: "d unsent",
        broken_behavior: "calls stay in buffers past their deadline, and may have run",
        edits: &[edit(
            "src/store/redis/batcher/round_trip_stats.rs",
            "MIN_ACTIVE_LIMIT.saturating_add(additional)",
            "(if FAULT { MAX_IN_FLIGHT } else { MIN_ACTIVE_LIMIT }).saturating_add(additional)",
        )],
        suites: &[unit_tests(&["unsent"])],
    },
    SourceFault {
        name: "full-server-unquoted",
        table_row: "d full",
        broken_behavior: "the error of a server with too many clients does not say so",
        edits: &[edit(
            "src/store/redis/target/connect_error.rs",
            "(is_full || REFUSAL_CODES.contains(&code)).then(",
            "(!FAULT && (is_full || REFUSAL_CODES.contains(&code))).then(",
        )],
        suites: &[unit_tests(&[
            "store::redis::tests::client_limit",
            "store::redis::target",
            "refus",
        ])],
    },
    SourceFault {
        name: "busy-run-is-charged",
        table_row: "d11",
        broken_behavior: "a run that met another busy lock counts as an attempt",
        edits: &[edit(
            "src/defer/settlement_rules.rs",
            "if self.replay.met_busy_lock_with(answer.status) {",
            "if !FAULT && self.replay.met_busy_lock_with(answer.status) {",
        )],
        suites: &[
            unit_tests(&["defer::"]),
            scenario_tests(&["defer::", "replay::", "reentrant_locks::"]),
        ],
    },
    SourceFault {
        name: "reserve-not-enforced",
        table_row: "d17",
        broken_behavior: "one client fills the shard of another client",
        edits: &[edit(
            "src/store/lua/enqueue_jobs.lua",
            "    not fits\n    or fits_outside_reserve(RESERVE_DIVISOR, job_count, used_bytes, extra_bytes, old_bytes, terms)\n",
            "    RESERVE_DIVISOR\n",
        )],
        suites: &[unit_tests(&["store::tests"]), scenario_tests(&["shard_fairness::"])],
    },
];
