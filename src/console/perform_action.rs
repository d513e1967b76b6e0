//! Performs an action of the page, or shows a payload, as an action of its operator.

use std::time::Duration;

use tokio::sync::oneshot;

use super::console_action::ConsoleAction;
use crate::{
    admin::{Admin, AdminError, Operator},
    durations::MAX_DURATION,
    key::Key,
    store::{JobId, Store, TaskId},
};

/// Longest wait for the result of an action that may take hours.
const MAX_REPLY_WAIT: Duration = Duration::from_secs(1);

/// Reason in the audit log of a look at a payload, since the page asks for none.
const LOOK_REASON: &str = "looked at in the console";

/// Performs an action and returns a sentence about its result, or the payload. It goes on when the
/// page is closed, so that its record is ended.
pub(super) async fn perform_action(
    store: &Store,
    operator: Operator,
    action: ConsoleAction,
) -> Result<String, AdminError> {
    let admin = store.admin(operator);
    let max_wait = match action {
        ConsoleAction::RedriveDeadJobs { .. } | ConsoleAction::PurgeDeadJobs { .. } => {
            MAX_REPLY_WAIT
        }
        // Nothing else tells the page of a refusal, or shows a payload.
        _ => MAX_DURATION,
    };
    run_in_store(store, max_wait, async move { perform_as_admin(&admin, action).await }).await
}

async fn perform_as_admin(admin: &Admin, action: ConsoleAction) -> Result<String, AdminError> {
    match action {
        ConsoleAction::PauseJobs { .. }
        | ConsoleAction::ResumeJobs { .. }
        | ConsoleAction::CancelJob { .. }
        | ConsoleAction::RunJobNow { .. }
        | ConsoleAction::RedriveJob { .. }
        | ConsoleAction::PurgeJob { .. }
        | ConsoleAction::JobPayload { .. } => perform_job_action(admin, action).await,
        ConsoleAction::RedriveDeadJobs { .. } | ConsoleAction::PurgeDeadJobs { .. } => {
            perform_bulk_action(admin, action).await
        }
        ConsoleAction::ForceRelease { lock, reason } => force_release(admin, &lock, &reason).await,
        ConsoleAction::SetPolicy { .. }
        | ConsoleAction::ClearPolicy { .. }
        | ConsoleAction::ClearBlocks { .. }
        | ConsoleAction::ResetLimit { .. }
        | ConsoleAction::Block { .. }
        | ConsoleAction::Unblock { .. } => perform_limit_action(admin, action).await,
        ConsoleAction::DrainProcess { node, reason } => {
            admin.drain_process(&node, &reason).await?;
            Ok("The process is drained: its workers start nothing more.".to_owned())
        }
        ConsoleAction::ResumeProcess { node, reason } => {
            admin.resume_process(&node, &reason).await?;
            Ok("The workers of the process start work again.".to_owned())
        }
        ConsoleAction::Repair { reason } => {
            let report = admin.repair_store(&reason).await?;
            let repaired = report.faults().filter(|finding| finding.repaired).count();
            Ok(format!("{repaired} faults were repaired."))
        }
        _ => perform_queue_action(admin, action).await,
    }
}

async fn force_release(admin: &Admin, lock: &str, reason: &str) -> Result<String, AdminError> {
    Ok(match admin.force_release(operator_key(lock), reason).await? {
        1 => format!("{lock} was taken from its holder."),
        holders => format!("{lock} was taken from {holders} holders."),
    })
}

async fn perform_limit_action(admin: &Admin, action: ConsoleAction) -> Result<String, AdminError> {
    match action {
        ConsoleAction::SetPolicy { policy, change, reason } => {
            admin.set_policy(&policy, change, &reason).await?;
            Ok(format!("{policy} is changed in all processes."))
        }
        ConsoleAction::ClearPolicy { policy, reason } => {
            admin.clear_policy(&policy, &reason).await?;
            Ok(format!("{policy} is as deployed."))
        }
        ConsoleAction::ClearBlocks { policy, reason } => {
            admin.clear_blocks(&policy, &reason).await?;
            Ok(format!("{policy} blocks nobody."))
        }
        ConsoleAction::ResetLimit { policy, subject, reason } => {
            admin.reset_limit(&policy, operator_key(&subject), &reason).await?;
            Ok(format!("{subject} has its whole quota again."))
        }
        ConsoleAction::Block { policy, subject, seconds, reason } => {
            let duration = Duration::from_secs(seconds);
            admin.block(&policy, operator_key(&subject), duration, &reason).await?;
            Ok(format!("{subject} is blocked for {seconds} s."))
        }
        ConsoleAction::Unblock { policy, subject, reason } => {
            admin.unblock(&policy, operator_key(&subject), &reason).await?;
            Ok(format!("{subject} is no longer blocked."))
        }
        _ => Err(AdminError::Invalid("this is no action on a limit".to_owned())),
    }
}

async fn perform_job_action(admin: &Admin, action: ConsoleAction) -> Result<String, AdminError> {
    match action {
        ConsoleAction::PauseJobs { reason } => {
            admin.pause_jobs(&reason).await?;
            Ok("Deferred requests are paused.".to_owned())
        }
        ConsoleAction::ResumeJobs { reason } => {
            admin.resume_jobs(&reason).await?;
            Ok("Deferred requests are resumed.".to_owned())
        }
        ConsoleAction::CancelJob { id, reason } => {
            admin.cancel_job(&parse_job_id(&id)?, &reason).await?;
            Ok("The request is cancelled.".to_owned())
        }
        ConsoleAction::RunJobNow { id, reason } => {
            admin.run_job_now(&parse_job_id(&id)?, &reason).await?;
            Ok("The request runs as soon as its lock is free.".to_owned())
        }
        ConsoleAction::RedriveJob { id, reason } => {
            admin.redrive_job(&parse_job_id(&id)?, &reason).await?;
            Ok("The request waits to run again.".to_owned())
        }
        ConsoleAction::PurgeJob { id, reason } => {
            admin.purge_job(&parse_job_id(&id)?, &reason).await?;
            Ok("The request is deleted.".to_owned())
        }
        ConsoleAction::JobPayload { id } => show_job_payload(admin, &id).await,
        _ => Err(AdminError::Invalid("this is no action on a request".to_owned())),
    }
}

/// Performs an action on all dead requests, which may take hours.
async fn perform_bulk_action(admin: &Admin, action: ConsoleAction) -> Result<String, AdminError> {
    match action {
        ConsoleAction::RedriveDeadJobs { per_second, reason } => {
            let count = admin.redrive_dead_jobs(per_second, &reason).await?;
            Ok(format!("{count} requests wait to run again."))
        }
        ConsoleAction::PurgeDeadJobs { older_than_seconds, reason } => {
            let age = Duration::from_secs(older_than_seconds);
            let count = admin.purge_dead_jobs(age, &reason).await?;
            Ok(format!("{count} requests are deleted."))
        }
        _ => Err(AdminError::Invalid("this is no action on all dead requests".to_owned())),
    }
}

/// Runs an action in a task of the store, so that it goes on when the page is closed. Returns its
/// result if it ends within `max_wait`.
async fn run_in_store(
    store: &Store,
    max_wait: Duration,
    action: impl Future<Output = Result<String, AdminError>> + Send + 'static,
) -> Result<String, AdminError> {
    let (sender, result) = oneshot::channel();
    // Without its page, the result is in the audit log only.
    store.spawn_long_running(async move { drop(sender.send(action.await)) });
    match tokio::time::timeout(max_wait, result).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(AdminError::NotPossible("the process is ending".to_owned())),
        Err(_) => Ok("It goes on without this page. The audit log tells its end.".to_owned()),
    }
}

async fn perform_queue_action(admin: &Admin, action: ConsoleAction) -> Result<String, AdminError> {
    match action {
        ConsoleAction::PauseQueue { queue, reason } => {
            admin.pause_queue(operator_key(&queue), &reason).await?;
            Ok(format!("{queue} is paused."))
        }
        ConsoleAction::ResumeQueue { queue, reason } => {
            admin.resume_queue(operator_key(&queue), &reason).await?;
            Ok(format!("{queue} is resumed."))
        }
        ConsoleAction::CancelTask { queue, id, reason } => {
            admin.cancel_task(operator_key(&queue), &parse_task_id(&id)?, &reason).await?;
            Ok("The task is cancelled, unless it was done before.".to_owned())
        }
        ConsoleAction::RunTaskNow { queue, id, reason } => {
            admin.run_task_now(operator_key(&queue), &parse_task_id(&id)?, &reason).await?;
            Ok("The task is due.".to_owned())
        }
        ConsoleAction::RedriveTask { queue, id, reason } => {
            admin.redrive_task(operator_key(&queue), &parse_task_id(&id)?, &reason).await?;
            Ok("The task waits to run again.".to_owned())
        }
        ConsoleAction::RedriveTasks { queue, per_second, reason } => {
            let count = admin.redrive_tasks(operator_key(&queue), per_second, &reason).await?;
            Ok(format!("{count} tasks wait to run again."))
        }
        ConsoleAction::PurgeTask { queue, id, reason } => {
            admin.purge_task(operator_key(&queue), &parse_task_id(&id)?, &reason).await?;
            Ok("The dead letter is deleted.".to_owned())
        }
        ConsoleAction::TaskPayload { queue, id } => {
            let (queue, id) = (operator_key(&queue), parse_task_id(&id)?);
            let payload = admin.task_payload(queue, &id, LOOK_REASON).await?;
            Ok(serde_json::to_string_pretty(&payload).unwrap_or_default())
        }
        _ => Err(AdminError::Invalid("this is no action on a queue".to_owned())),
    }
}

async fn show_job_payload(admin: &Admin, id: &str) -> Result<String, AdminError> {
    let request = admin.job_payload(&parse_job_id(id)?, LOOK_REASON).await?;
    let headers = request
        .headers
        .iter()
        .map(|(name, value)| format!("{name}: {}\n", String::from_utf8_lossy(value)));
    let body = String::from_utf8_lossy(&request.body);
    let head = format!("{} {}\n", request.method, request.target);
    Ok(format!("{head}{}\n{body}", headers.collect::<String>()))
}

/// Returns the key of a name on the page.
pub(super) fn operator_key(name: &str) -> Key {
    Key::from_operator_name(name)
}

pub(super) fn parse_job_id(text: &str) -> Result<JobId, AdminError> {
    text.parse().map_err(|_| AdminError::Invalid("this is not the id of a request".to_owned()))
}

pub(super) fn parse_task_id(text: &str) -> Result<TaskId, AdminError> {
    text.parse().map_err(|_| AdminError::Invalid("this is not the id of a task".to_owned()))
}
