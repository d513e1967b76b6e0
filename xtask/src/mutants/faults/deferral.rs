//! Deferred requests, remembered requests, and callbacks.

use super::{Fault, deferral, edit, rows, unit};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "claim-ignores-holder-lua",
        row: "d12",
        breaks: "a job runs while another request has its lock",
        edits: &[edit(
            "src/store/lua/claim_job.lua",
            "if latest_ms and not offer_ms then",
            "if false then",
        )],
        suites: &[unit(&["store::tests"])],
    },
    Fault {
        name: "claim-ignores-holder-memory",
        row: "d12",
        breaks: "a job runs while another request has its lock",
        edits: &[edit(
            "src/store/memory/claim_and_settle.rs",
            "Some(last) if !offered => {",
            "Some(last) if !offered && !FAULT => {",
        )],
        suites: &[unit(&["store::tests", "defer::tests"])],
    },
    Fault {
        name: "late-settlement-lua",
        row: "d3",
        breaks: "a worker that was stopped past its lease settles its run",
        edits: &[edit(
            "src/store/lua/settle_job.lua",
            "if redis.call('ZREM', HOLDERS, 'h' .. token) == 0 then return {'lost'} end",
            "redis.call('ZREM', HOLDERS, 'h' .. token)",
        )],
        suites: &[unit(&["store::tests"])],
    },
    Fault {
        name: "late-settlement-memory",
        row: "d3",
        breaks: "a worker that was stopped past its lease settles its run",
        edits: &[edit(
            "src/store/memory/claim_and_settle.rs",
            "if !held {\n            return SettleOutcome::RunLost;",
            "if !held && !FAULT {\n            return SettleOutcome::RunLost;",
        )],
        suites: &[unit(&["store::tests", "defer::tests"])],
    },
    Fault {
        name: "crash-not-charged",
        row: "d13",
        breaks: "a request that ends its worker runs without end",
        edits: &[edit(
            "src/store/lua/claim_job.lua",
            "local job_key, attempt = shard_key('j:' .. id), job.attempts + 1\n",
            "local job_key, attempt = shard_key('j:' .. id), job.attempts + (job.state == 'running' and 0 or 1)\n",
        )],
        suites: &[unit(&["store::tests"])],
    },
    Fault {
        name: "retry-loses-its-place",
        row: "d11",
        breaks: "requests of a resource pass one that waits for its retry",
        edits: &[edit(
            "src/store/lua/settle_job.lua",
            "if (verb == 'retry' or verb == 'back') and redis.call('HGET', job_key, 'skip') == '1' then",
            "if verb == 'retry' or verb == 'back' then",
        )],
        suites: &[unit(&["store::tests"])],
    },
    Fault {
        name: "order-not-kept-memory",
        row: "d14",
        breaks: "requests of one moment run in any order",
        edits: &[edit(
            "src/store/memory/lock_commands.rs",
            "self.shard.last_seq = (self.shard.last_seq + 1).max(self.now.us);",
            "self.shard.last_seq = if FAULT { self.now.us } else { (self.shard.last_seq + 1).max(self.now.us) };",
        )],
        suites: &[unit(&["store::tests", "defer::tests"])],
    },
    Fault {
        name: "worker-not-told",
        row: "d11",
        breaks: "a worker learns of a free lock by looking again",
        edits: &[edit(
            "src/store/lua/wait_queue.lua",
            "      redis.call(\n        PUBLISH_COMMAND, CHANNEL_PREFIX .. 'w:' .. node_or_backoffs,\n        'j ' .. LOCK_NAME .. ' ' .. job_id\n      )\n",
            "",
        )],
        suites: &[unit(&["store::tests"])],
    },
    Fault {
        name: "drain-not-told",
        row: "d16",
        breaks: "a worker that stops goes on to the next request of a resource",
        edits: &[edit(
            "src/defer/job_dispatcher/drain.rs",
            "self.shutdown.send_replace(ShutdownPhase::Draining);",
            "if !FAULT {\n            ORIGINAL\n        }",
        )],
        suites: &[deferral(&["drain"])],
    },
    Fault {
        name: "other-request-is-known",
        row: "d2",
        breaks: "a key that is used for another request is answered with the first one's job",
        edits: &[edit(
            "src/store/lua/enqueue_batch.lua",
            "if record_fingerprint == fingerprint or record_fingerprint == '-' then",
            "if record_fingerprint then",
        )],
        suites: &[unit(&["store::tests"]), rows(&["idempotency::"])],
    },
    Fault {
        name: "cancels-a-run",
        row: "d18",
        breaks: "a request is cancelled while it runs",
        edits: &[edit(
            "src/store/lua/cancel_job.lua",
            "if values[1] ~= 'queued' or (values[4] or '0') ~= ARGV[3] then",
            "if (values[1] ~= 'queued' and values[1] ~= 'running') or (values[4] or '0') ~= ARGV[3] then",
        )],
        suites: &[unit(&["store::tests"])],
    },
    Fault {
        name: "status-of-others",
        row: "d17",
        breaks: "the status of a request is told to another user",
        edits: &[edit(
            "src/defer/status/status_request.rs",
            "Some(asker) => !job.owner.is_empty()",
            "Some(_) if FAULT => true,\n            ORIGINAL",
        )],
        suites: &[unit(&["defer::tests"]), rows(&["status::", "users::", "kept::"])],
    },
    Fault {
        name: "key-id-ignored",
        row: "d15",
        breaks: "what an older key has sealed does not open after a change of keys",
        edits: &[edit(
            "src/seal/keyring.rs",
            "self.0.ciphers.get(id)",
            "self.0.ciphers.get(if FAULT { &*self.0.seals } else { id })",
        )],
        suites: &[unit(&["seal::"])],
    },
    Fault {
        name: "crashed-post-runs-again-lua",
        row: "d2",
        breaks: "a POST that ran at once in a killed process runs again",
        edits: &[edit(
            "src/store/lua/wait_queue.lua",
            "  if values[4] ~= '1' then return 'crashed' end\n",
            "",
        )],
        suites: &[unit(&["store::tests"]), deferral(&["crash"])],
    },
    Fault {
        name: "crashed-post-runs-again-memory",
        row: "d2",
        breaks: "a POST that ran at once in a killed process runs again",
        edits: &[edit(
            "src/store/memory/direct_run.rs",
            "if !job.retry_after_crash {",
            "if !job.retry_after_crash && !FAULT {",
        )],
        suites: &[unit(&["store::tests"])],
    },
    Fault {
        name: "direct-lease-not-renewed",
        row: "d2",
        breaks: "a request that runs at once for longer than a lease is taken for crashed",
        edits: &[edit(
            "src/gate/idempotent_run.rs",
            "begun.spawn_renewals(call);",
            "if !FAULT {\n                    begun.spawn_renewals(call);\n                }",
        )],
        suites: &[unit(&["gate::"])],
    },
    Fault {
        name: "no-tombstone-lua",
        row: "d tombstones",
        breaks: "an evicted result is 404, as a request that was never accepted",
        edits: &[edit(
            "src/store/lua/ended_jobs.lua",
            "  redis.call('ZREM', shard_key(kind), id)\n  leave_tombstone(id)\n",
            "  redis.call('ZREM', shard_key(kind), id)\n  redis.call('UNLINK', shard_key('j:' .. id), shard_key('b:' .. id), shard_key('r:' .. id), shard_key('t:' .. id))\n",
        )],
        suites: &[unit(&["store::tests"]), rows(&["kept::"])],
    },
    Fault {
        name: "no-tombstone-memory",
        row: "d tombstones",
        breaks: "an evicted result is 404, as a request that was never accepted",
        edits: &[edit(
            "src/store/memory/shard_state.rs",
            "        let end = jobs.expiry_of(id).unwrap_or(0);\n",
            "        if FAULT {\n            jobs.remove(id);\n            return;\n        }\nORIGINAL",
        )],
        suites: &[unit(&["store::tests"]), rows(&["kept::"])],
    },
    Fault {
        name: "records-without-bound",
        row: "d tombstones",
        breaks: "an owner has any number of idempotency keys",
        edits: &[edit(
            "src/store/lua/ended_jobs.lua",
            "if redis.call('ZCOUNT', index, after_now, '+inf') < max_records then return nil end",
            "if max_records then return nil end",
        )],
        suites: &[unit(&["store::tests"])],
    },
    Fault {
        name: "callbacks-take-no-turns",
        row: "d callbacks",
        breaks: "receivers that never answer take all callbacks' room",
        edits: &[edit(
            "src/defer/webhook_receivers.rs",
            "let standing = self.receivers.get(&ReceiverId::Host(Arc::clone(host)));\n",
            "if FAULT {\n            return true;\n        }\n        ORIGINAL",
        )],
        suites: &[unit(&["defer::webhook_receivers"]), unit(&["defer::tests"])],
    },
    Fault {
        name: "callback-to-wire-server",
        row: "d callbacks",
        breaks: "a callback reaches the wire server of its virtual machine",
        edits: &[edit(
            "src/defer/webhook/address_policy.rs",
            "    !matches!(\n        ip.octets(),\n",
            "    (FAULT && ip.octets() == [168, 63, 129, 16]) || ORIGINAL",
        )],
        suites: &[unit(&["defer::webhook"])],
    },
    Fault {
        name: "polls-not-shared",
        row: "d callbacks",
        breaks: "each long poll of one request asks the store by itself",
        edits: &[edit(
            "src/store/job_watch.rs",
            "        match since {\n            PollFreshness::Now => number < self.fresh_requests,",
            "        match since {\n            _ if FAULT => false,\n            PollFreshness::Now => number < self.fresh_requests,",
        )],
        suites: &[unit(&["defer::tests"])],
    },
    Fault {
        name: "calls-in-buffers",
        row: "d unsent",
        breaks: "calls lie in buffers past their deadline, and may have run",
        edits: &[edit(
            "src/store/redis/batcher/lane_queue.rs",
            "MIN_ACTIVE_LIMIT.saturating_add(more)",
            "(if FAULT { MAX_IN_FLIGHT } else { MIN_ACTIVE_LIMIT }).saturating_add(more)",
        )],
        suites: &[unit(&["unsent"])],
    },
    Fault {
        name: "full-server-unquoted",
        row: "d full",
        breaks: "the error of a server with too many clients does not say so",
        edits: &[edit(
            "src/store/redis/target/connect_error.rs",
            "(is_full || REFUSAL_CODES.contains(&code)).then(",
            "(!FAULT && (is_full || REFUSAL_CODES.contains(&code))).then(",
        )],
        suites: &[unit(&["store::redis::tests::full", "store::redis::target", "refus"])],
    },
    Fault {
        name: "busy-run-is-charged",
        row: "d11",
        breaks: "a run that met another busy lock counts as an attempt",
        edits: &[edit(
            "src/defer/settlement_rules.rs",
            "if self.replay.met_busy_lock_with(answer.status) {",
            "if !FAULT && self.replay.met_busy_lock_with(answer.status) {",
        )],
        suites: &[unit(&["defer::"]), rows(&["defer::", "replay::", "within::"])],
    },
    Fault {
        name: "reserve-not-kept",
        row: "d17",
        breaks: "one client fills the shard of another one",
        edits: &[edit(
            "src/store/lua/enqueue_batch.lua",
            "    not fits\n    or leaves_reserve(RESERVE_DIVISOR, job_count, used_bytes, extra_bytes, old_bytes, terms)\n",
            "    RESERVE_DIVISOR\n",
        )],
        suites: &[unit(&["store::tests"]), rows(&["crowded::"])],
    },
];
