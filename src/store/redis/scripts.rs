//! Lua scripts, and the hashes by which they are called.
//!
//! Scripts that share functions start with the same preludes: for messages, for the wait queue, for
//! stored jobs, for tasks.

use std::sync::OnceLock;

/// One script, assembled from files of `lua/`.
pub(super) struct LuaScript {
    pub(super) name: &'static str,
    pub(super) source: &'static str,
    sha1: OnceLock<String>,
    /// The script may be sent again if it may have run already.
    pub(super) repeatable: bool,
}

impl LuaScript {
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
        pub(super) static $id: LuaScript = LuaScript::new($name, $code, $repeatable);
    };
}

macro_rules! job_script {
    ($id:ident, $name:literal) => {
        script!(
            $id,
            $name,
            concat!(
                include_str!("../lua/channel.lua"),
                include_str!("../lua/line.lua"),
                include_str!("../lua/kept.lua"),
                include_str!("../lua/jobs.lua"),
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
                include_str!("../lua/channel.lua"),
                include_str!("../lua/now.lua"),
                include_str!("../lua/tasks.lua"),
                include_str!(concat!("../lua/", $name, ".lua"))
            ),
            repeatable: $repeatable
        );
    };
}

script!(
    LOCK_BATCH,
    "calls",
    concat!(
        include_str!("../lua/usual.lua"),
        include_str!("../lua/channel.lua"),
        include_str!("../lua/line.lua"),
        include_str!("../lua/acquire.lua"),
        include_str!("../lua/still.lua"),
        include_str!("../lua/release.lua"),
        include_str!("../lua/downgrade.lua"),
        include_str!("../lua/calls.lua")
    ),
    repeatable: true
);
script!(
    ENQUEUE_BATCH,
    "enqueue",
    concat!(
        include_str!("../lua/channel.lua"),
        include_str!("../lua/line.lua"),
        include_str!("../lua/kept.lua"),
        include_str!("../lua/jobs.lua"),
        include_str!("../lua/enqueue.lua")
    ),
    repeatable: true
);
script!(
    ACQUIRE_ALL,
    "several",
    concat!(
        include_str!("../lua/channel.lua"),
        include_str!("../lua/line.lua"),
        include_str!("../lua/acquire.lua"),
        include_str!("../lua/several.lua")
    ),
    repeatable: true
);
script!(
    RUN_BATCH,
    "runs",
    concat!(
        include_str!("../lua/channel.lua"),
        include_str!("../lua/line.lua"),
        include_str!("../lua/kept.lua"),
        include_str!("../lua/jobs.lua"),
        include_str!("../lua/ends.lua"),
        include_str!("../lua/claim.lua"),
        include_str!("../lua/settle.lua"),
        include_str!("../lua/runs.lua")
    ),
    repeatable: true
);
script!(
    READ_JOB,
    "job",
    concat!(include_str!("../lua/view.lua"), include_str!("../lua/job.lua")),
    repeatable: true
);
script!(READ_CURRENT_RUN, "running", include_str!("../lua/running.lua"), repeatable: true);
script!(
    LIST_ENDED_JOBS,
    "list",
    concat!(include_str!("../lua/view.lua"), include_str!("../lua/list.lua")),
    repeatable: true
);
script!(
    LIST_PENDING_JOBS,
    "pending",
    concat!(include_str!("../lua/view.lua"), include_str!("../lua/pending.lua")),
    repeatable: true
);
job_script!(REDRIVE_JOB, "redrive");
job_script!(PURGE_JOB, "purge");
script!(SHARD_STATS, "tally", include_str!("../lua/tally.lua"), repeatable: true);
job_script!(CANCEL_JOB, "cancel");
job_script!(DIRECT_RUN, "direct");
job_script!(POLL_DUE, "due");
script!(RENEW, "renew", include_str!("../lua/renew.lua"), repeatable: true);
script!(ADVANCE_FENCE, "raise", include_str!("../lua/raise.lua"), repeatable: true);
script!(ADVANCE_FENCES_AFTER_FAILOVER, "fences", include_str!("../lua/fences.lua"), repeatable: true);
script!(
    HEARTBEAT,
    "beat",
    concat!(include_str!("../lua/living.lua"), include_str!("../lua/beat.lua")),
    repeatable: true
);
script!(
    CLUSTER_HEARTBEAT,
    "workers",
    concat!(include_str!("../lua/living.lua"), include_str!("../lua/workers.lua")),
    repeatable: true
);
script!(SHARD_WATCH, "watch", include_str!("../lua/watch.lua"), repeatable: true);
script!(
    PAUSE_JOBS,
    "pause",
    concat!(include_str!("../lua/channel.lua"), include_str!("../lua/pause.lua")),
    repeatable: false
);
script!(
    PUBLISH,
    "tell",
    concat!(include_str!("../lua/channel.lua"), include_str!("../lua/tell.lua")),
    repeatable: true
);
script!(CHECK_ACL, "may", include_str!("../lua/may.lua"), repeatable: true);
script!(REGISTER_MEMBER, "present", include_str!("../lua/present.lua"), repeatable: true);
// Not repeatable: a repeated charge would count twice.
script!(
    CHARGE_BATCH,
    "charge",
    concat!(
        include_str!("../lua/now.lua"),
        include_str!("../lua/window.lua"),
        include_str!("../lua/charge.lua"),
        include_str!("../lua/rate.lua"),
        include_str!("../lua/charges.lua")
    ),
    repeatable: false
);
script!(
    SETTLE_CHARGE,
    "settle_charge",
    concat!(
        include_str!("../lua/now.lua"),
        include_str!("../lua/window.lua"),
        include_str!("../lua/rate.lua"),
        include_str!("../lua/settle_charge.lua")
    ),
    repeatable: false
);
script!(
    TASKS_PUSH,
    "tasks_push",
    concat!(
        include_str!("../lua/tasks_one.lua"),
        include_str!("../lua/channel.lua"),
        include_str!("../lua/now.lua"),
        include_str!("../lua/tasks.lua"),
        include_str!("../lua/tasks_push.lua")
    ),
    repeatable: true
);
task_script!(TASKS_POLL, "tasks_turn", repeatable: true);
task_script!(TASKS_INSPECT, "tasks_look", repeatable: true);
// Not repeatable: a second run would meet other tasks.
task_script!(TASKS_ADMIN, "tasks_edit", repeatable: false);
script!(
    TASKS_RENEW,
    "tasks_renew",
    concat!(include_str!("../lua/now.lua"), include_str!("../lua/tasks_renew.lua")),
    repeatable: true
);
script!(RESET_CHARGES, "reset_charges", include_str!("../lua/reset_charges.lua"), repeatable: false);

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use crate::{
        clock::ceil_millis,
        store::{
            backend::{OFFER_TIMEOUT, SPARE_FENCES},
            deferred::ENDED_JOB_OVERHEAD,
        },
    };

    /// Scripts repeat constants of each other and of the library: they share no code at run time.
    #[test]
    fn all_scripts_have_the_numbers_of_this_library() {
        let window = ceil_millis(OFFER_TIMEOUT);
        let said = [
            ("local SPARE, AHEAD = ", 4, format!("{SPARE_FENCES}, 600000000\n")),
            ("local SIZE = ", 1, format!("{ENDED_JOB_OVERHEAD}\n")),
            ("local ACCEPT = ", 1, format!("{window}\n")),
        ];
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/lua");
        let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        let scripts: String = files.map(|path| fs::read_to_string(path).unwrap()).collect();
        for (before, times, number) in said {
            let found = Vec::from_iter(scripts.split(before).skip(1));
            assert_eq!(found.len(), times, "{before}");
            assert!(found.iter().all(|rest| rest.starts_with(&number)), "{before}{number}");
        }
    }
}
