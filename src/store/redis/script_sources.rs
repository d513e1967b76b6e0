//! Lua script sources, and the hashes by which they are called.
//!
//! Scripts that share functions start with the same preludes: for messages, for the wait queue, for
//! stored jobs, for tasks.

use std::sync::OnceLock;

/// One script, assembled from files of `lua/`.
pub(super) struct ScriptSource {
    /// Name of the last file, for errors and log messages.
    pub(super) name: &'static str,
    pub(super) source: &'static str,
    sha1: OnceLock<String>,
    /// The script may be sent again if it may have run already.
    pub(super) repeatable: bool,
}

impl ScriptSource {
    /// Creates a script; its hash is computed with the first call.
    pub(super) const fn new(name: &'static str, code: &'static str, repeatable: bool) -> Self {
        Self { name, source: code, sha1: OnceLock::new(), repeatable }
    }

    pub(super) fn sha1(&self) -> &str {
        self.sha1.get_or_init(|| redis::Script::new(self.source).get_hash().to_owned())
    }
}

macro_rules! script {
    ($id:ident, $name:literal, $code:expr, repeatable: $repeatable:literal) => {
        pub(super) static $id: ScriptSource = ScriptSource::new($name, $code, $repeatable);
    };
}

macro_rules! job_script {
    ($id:ident, $name:literal) => {
        script!(
            $id,
            $name,
            concat!(
                include_str!("../lua/choose_publish_command.lua"),
                include_str!("../lua/wait_queue.lua"),
                include_str!("../lua/ended_job_bookkeeping.lua"),
                include_str!("../lua/pending_job_bookkeeping.lua"),
                include_str!(concat!("../lua/", $name, ".lua"))
            ),
            repeatable: true
        );
    };
}

macro_rules! task_script {
    ($id:ident, $name:literal, repeatable: $repeatable:literal) => {
        script!(
            $id,
            $name,
            concat!(
                include_str!("../lua/choose_publish_command.lua"),
                include_str!("../lua/server_time.lua"),
                include_str!("../lua/tasks_wakeups.lua"),
                include_str!(concat!("../lua/", $name, ".lua"))
            ),
            repeatable: $repeatable
        );
    };
}

script!(
    LOCK_BATCH,
    "lock_batch",
    concat!(
        include_str!("../lua/lock_batch_fast.lua"),
        include_str!("../lua/choose_publish_command.lua"),
        include_str!("../lua/wait_queue.lua"),
        include_str!("../lua/acquire.lua"),
        include_str!("../lua/new_fence_and_queue_snapshot.lua"),
        include_str!("../lua/release.lua"),
        include_str!("../lua/downgrade.lua"),
        include_str!("../lua/lock_batch.lua")
    ),
    repeatable: true
);
script!(
    ENQUEUE_JOBS,
    "enqueue_jobs",
    concat!(
        include_str!("../lua/choose_publish_command.lua"),
        include_str!("../lua/wait_queue.lua"),
        include_str!("../lua/ended_job_bookkeeping.lua"),
        include_str!("../lua/pending_job_bookkeeping.lua"),
        include_str!("../lua/enqueue_jobs.lua")
    ),
    repeatable: true
);
script!(
    ACQUIRE_ALL,
    "acquire_all",
    concat!(
        include_str!("../lua/choose_publish_command.lua"),
        include_str!("../lua/wait_queue.lua"),
        include_str!("../lua/acquire.lua"),
        include_str!("../lua/acquire_all.lua")
    ),
    repeatable: true
);
script!(
    CLAIM_SETTLE_BATCH,
    "claim_settle_batch",
    concat!(
        include_str!("../lua/choose_publish_command.lua"),
        include_str!("../lua/wait_queue.lua"),
        include_str!("../lua/ended_job_bookkeeping.lua"),
        include_str!("../lua/pending_job_bookkeeping.lua"),
        include_str!("../lua/dequeue_ended_job.lua"),
        include_str!("../lua/claim_lock_and_job.lua"),
        include_str!("../lua/settle_job_and_claim_next.lua"),
        include_str!("../lua/claim_settle_batch.lua")
    ),
    repeatable: true
);
script!(
    READ_JOB,
    "read_job",
    concat!(include_str!("../lua/job_view.lua"), include_str!("../lua/read_job.lua")),
    repeatable: true
);
script!(READ_CURRENT_RUN, "read_current_run", include_str!("../lua/read_current_run.lua"), repeatable: true);
script!(
    LIST_ENDED_JOBS,
    "list_ended_jobs",
    concat!(include_str!("../lua/job_view.lua"), include_str!("../lua/list_ended_jobs.lua")),
    repeatable: true
);
script!(
    LIST_PENDING_JOBS,
    "list_pending_jobs",
    concat!(include_str!("../lua/job_view.lua"), include_str!("../lua/list_pending_jobs.lua")),
    repeatable: true
);
job_script!(REDRIVE_JOB, "redrive_job");
job_script!(PURGE_JOB_TO_TOMBSTONE, "purge_job_to_tombstone");
script!(SHARD_STATS, "shard_stats", include_str!("../lua/shard_stats.lua"), repeatable: true);
script!(
    INSPECT_LOCK,
    "inspect_lock",
    concat!(
        include_str!("../lua/choose_publish_command.lua"),
        include_str!("../lua/wait_queue.lua"),
        include_str!("../lua/inspect_lock.lua")
    ),
    repeatable: true
);
script!(
    FORCE_RELEASE,
    "force_release",
    concat!(
        include_str!("../lua/choose_publish_command.lua"),
        include_str!("../lua/wait_queue.lua"),
        include_str!("../lua/force_release.lua")
    ),
    repeatable: false
);
script!(
    APPEND_FLEET_REPORT,
    "append_fleet_report",
    include_str!("../lua/append_fleet_report.lua"),
    repeatable: false
);
job_script!(CANCEL_JOB, "cancel_job");
job_script!(END_JOB_DELAY, "end_job_delay");
job_script!(IDEMPOTENT_RUN_RECORD, "idempotent_run_record");
job_script!(POLL_DUE_LOCKS_AND_JOBS, "poll_due_locks_and_jobs");
script!(RENEW, "renew", include_str!("../lua/renew.lua"), repeatable: true);
script!(ADVANCE_FENCE, "advance_fence", include_str!("../lua/advance_fence.lua"), repeatable: true);
script!(ADVANCE_FENCES_AFTER_FAILOVER, "advance_fences_after_failover", include_str!("../lua/advance_fences_after_failover.lua"), repeatable: true);
script!(
    HEARTBEAT_AND_SHARD_ASSIGNMENT,
    "heartbeat_and_shard_assignment",
    concat!(include_str!("../lua/worker_registry.lua"), include_str!("../lua/heartbeat_and_shard_assignment.lua")),
    repeatable: true
);
script!(
    CLUSTER_HEARTBEAT,
    "cluster_heartbeat",
    concat!(include_str!("../lua/worker_registry.lua"), include_str!("../lua/cluster_heartbeat.lua")),
    repeatable: true
);
script!(
    CLUSTER_SHARD_WATCH_LEASE,
    "cluster_shard_watch_lease",
    include_str!("../lua/cluster_shard_watch_lease.lua"),
    repeatable: true
);
script!(
    PAUSE_JOBS,
    "pause_jobs",
    concat!(include_str!("../lua/choose_publish_command.lua"), include_str!("../lua/pause_jobs.lua")),
    repeatable: false
);
script!(
    PUBLISH,
    "publish",
    concat!(include_str!("../lua/choose_publish_command.lua"), include_str!("../lua/publish.lua")),
    repeatable: true
);
script!(CHECK_ACL, "check_acl", include_str!("../lua/check_acl.lua"), repeatable: true);
script!(
    REGISTER_LIMITER_AND_COUNT,
    "register_limiter_and_count",
    include_str!("../lua/register_limiter_and_count.lua"),
    repeatable: true
);
// Not repeatable: a repeated charge would count twice.
script!(
    CHARGE_BATCH,
    "charge_batch",
    concat!(
        include_str!("../lua/server_time.lua"),
        include_str!("../lua/choose_window_ttl_command.lua"),
        include_str!("../lua/charge_batch_fast.lua"),
        include_str!("../lua/quota_counter_load_store.lua"),
        include_str!("../lua/charge_batch.lua")
    ),
    repeatable: false
);
script!(
    SETTLE_CHARGE,
    "settle_charge",
    concat!(
        include_str!("../lua/server_time.lua"),
        include_str!("../lua/choose_window_ttl_command.lua"),
        include_str!("../lua/quota_counter_load_store.lua"),
        include_str!("../lua/settle_charge.lua")
    ),
    repeatable: false
);
script!(
    TASKS_PUSH,
    "tasks_push",
    concat!(
        include_str!("../lua/tasks_push_one_nonunique.lua"),
        include_str!("../lua/choose_publish_command.lua"),
        include_str!("../lua/server_time.lua"),
        include_str!("../lua/tasks_wakeups.lua"),
        include_str!("../lua/tasks_push.lua")
    ),
    repeatable: true
);
task_script!(TASKS_SETTLE_AND_POLL, "tasks_settle_and_poll", repeatable: true);
task_script!(TASKS_INSPECT, "tasks_inspect", repeatable: true);
// Not repeatable: a second run would meet other tasks.
task_script!(TASKS_CANCEL_REDRIVE_PURGE_PAUSE, "tasks_cancel_redrive_purge_pause",
    repeatable: false
);
script!(
    TASKS_RENEW,
    "tasks_renew",
    concat!(include_str!("../lua/server_time.lua"), include_str!("../lua/tasks_renew.lua")),
    repeatable: true
);
script!(
    APPEND_AUDIT_RECORD,
    "append_audit_record",
    include_str!("../lua/append_audit_record.lua"),
    repeatable: false
);
script!(
    REPLACE_AUDIT_RECORD,
    "replace_audit_record",
    include_str!("../lua/replace_audit_record.lua"),
    repeatable: true
);
script!(
    READ_AUDIT_RECORDS,
    "read_audit_records",
    include_str!("../lua/read_audit_records.lua"),
    repeatable: true
);
script!(
    REGISTER_QUEUE,
    "register_queue",
    include_str!("../lua/register_queue.lua"),
    repeatable: true
);
script!(
    REPLACE_POLICY_CHANGES,
    "replace_policy_changes",
    concat!(
        include_str!("../lua/choose_publish_command.lua"),
        include_str!("../lua/replace_policy_changes.lua")
    ),
    repeatable: true
);
script!(BLOCK_COUNTERS, "block_counters", include_str!("../lua/block_counters.lua"), repeatable: false);
script!(RESET_CHARGES, "reset_charges", include_str!("../lua/reset_charges.lua"), repeatable: false);

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use crate::{
        durations::ceil_millis,
        store::{
            backend::{OFFER_TIMEOUT, SPARE_FENCES},
            deferred::ENDED_JOB_OVERHEAD,
        },
    };

    /// Scripts repeat constants of each other and of the library: they share no code at run time.
    #[test]
    fn scripts_repeat_the_constants_of_the_library() {
        let window = ceil_millis(OFFER_TIMEOUT);
        let constants = [
            ("local SPARE_FENCES, FENCE_LEAD_US = ", 4, format!("{SPARE_FENCES}, 600000000\n")),
            ("local ENDED_JOB_OVERHEAD = ", 1, format!("{ENDED_JOB_OVERHEAD}\n")),
            ("local OFFER_TIMEOUT_MS = ", 1, format!("{window}\n")),
        ];
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/lua");
        let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        let scripts: String = files.map(|path| fs::read_to_string(path).unwrap()).collect();
        for (before, times, number) in constants {
            let found = Vec::from_iter(scripts.split(before).skip(1));
            assert_eq!(found.len(), times, "{before}");
            assert!(found.iter().all(|rest| rest.starts_with(&number)), "{before}{number}");
        }
    }
}
