//! Log records and counts of jobs that ended without another run.

use super::job_chain::JobChain;
use crate::{
    instruments::RunResult,
    store::{JobId, JobState, JobView},
};

/// Reason in the store of a job that must not run again after a crash (`claim_lock_and_job.lua`).
const CRASHED: &str = "crashed, may have run";

/// Reason of a job without its stored request.
const LOST: &str = "lost";

/// Reason of a job that has expired.
const DEADLINE: &str = "deadline";

impl JobChain {
    /// Logs why a job has ended without another run, and counts it if it is dead. The reply to the
    /// claim does not contain the reason, so the store is asked for it: such an end is rare.
    pub(super) async fn report_end_without_run(&self, id: &JobId) {
        let store = &self.worker.store;
        let view = store.backend().job_view(id.clone()).await.ok().flatten();
        if let Some(view) = view.as_ref().filter(|view| view.state == JobState::Dead) {
            let route = view.history.route.as_deref().and_then(|route| route.split_once(' '));
            self.count_run(route.map(|(_method, route)| route), RunResult::Dead, None);
        }
        let lock = store.log_name(&self.key);
        let (job, attempt) = (id.log_prefix(), view.as_ref().map(|view| view.attempts));
        match end_reason(view.as_ref()) {
            Some(CRASHED) => tracing::error!(
                %lock, %job, attempt,
                "job is dead: the process of its run crashed or lost its lock, so it may have run; \
                 by its method it does not run again, see .retry_non_idempotent()"
            ),
            Some(LOST) => tracing::error!(
                %lock, %job, attempt,
                "job is dead: its stored request has vanished from the store; the server must not \
                 evict keys (maxmemory-policy noeviction)"
            ),
            Some(DEADLINE) => tracing::warn!(
                %lock, %job, attempt,
                "job has expired: it could not start before the time that .expires_after(..) sets; \
                 add workers, or allow more time"
            ),
            reason => tracing::error!(
                %lock, %job, attempt, reason,
                "job ended without another run; its status has the reason"
            ),
        }
    }
}

fn end_reason(view: Option<&JobView>) -> Option<&str> {
    view?.reason.as_deref()
}
