//! Queries of the page besides its snapshots: one thing, or one page of a list.

use std::{collections::HashMap, str::FromStr};

use serde::Serialize;
use serde_json::Value;

use super::perform_action::{operator_key, parse_job_id};
use crate::{
    admin::{AdminError, AuditCursor},
    defer::{JobCursor, JobFilter, JobGroup},
    queue::{DeadLetterCursor, TaskCursor},
    store::{Store, TaskFilter},
};

/// Length of a page of a list.
const PAGE_LEN: usize = 50;

/// Why a query has no answer.
#[derive(Debug)]
pub(super) enum QueryError {
    /// There is no such query, or no such thing.
    Unknown,
    Invalid(String),
    Admin(AdminError),
}

impl<E: Into<AdminError>> From<E> for QueryError {
    fn from(error: E) -> Self {
        Self::Admin(error.into())
    }
}

type Parameters = HashMap<String, String>;

/// Answers a query by its name.
pub(super) async fn answer_query(
    store: &Store,
    name: &str,
    parameters: &Parameters,
) -> Result<Value, QueryError> {
    match name {
        "lock" => {
            let lock = store.lock(operator_key(text(parameters, "key"))).inspect().await?;
            let sentence = lock.to_string();
            Ok(with_member(serde_json::to_value(lock).unwrap_or_default(), "sentence", sentence))
        }
        "limit" => {
            let subject = operator_key(text(parameters, "subject"));
            let limit = store.inspect_limit(text(parameters, "policy"), subject).await?;
            let sentence = limit.to_string();
            Ok(with_member(serde_json::to_value(limit).unwrap_or_default(), "sentence", sentence))
        }
        "jobs" => list_jobs(store, parameters).await,
        "job" => {
            let id = parse_job_id(text(parameters, "id"))?;
            let job = store.deferred_jobs().get(&id).await?;
            to_value(job.ok_or(QueryError::Unknown)?)
        }
        "tasks" => list_tasks(store, parameters).await,
        "audit" => {
            let from = cursor::<AuditCursor>(parameters)?.unwrap_or_default();
            to_value(store.audit(from, PAGE_LEN).await?)
        }
        _ => Err(QueryError::Unknown),
    }
}

/// Lists deferred requests in a state, or those that match a filter.
async fn list_jobs(store: &Store, parameters: &Parameters) -> Result<Value, QueryError> {
    let group = match text(parameters, "state") {
        "" | "pending" => JobGroup::Pending,
        "waiting" => JobGroup::Waiting,
        "delayed" => JobGroup::Delayed,
        "running" => JobGroup::Running,
        "dead" => JobGroup::Dead,
        "done" => JobGroup::Done,
        _ => return Err(QueryError::Invalid("unknown state".to_owned())),
    };
    let mut filter = JobFilter::new(group);
    let wanted = |name| Some(text(parameters, name)).filter(|wanted| !wanted.is_empty());
    if let Some(owner) = wanted("owner") {
        filter = filter.owner(owner);
    }
    if let Some(lock) = wanted("lock") {
        filter = filter.lock(operator_key(lock));
    }
    if let Some(route) = wanted("route") {
        filter = filter.route(route);
    }
    if let Some(reason) = wanted("reason") {
        filter = filter.reason(reason);
    }
    let from = cursor::<JobCursor>(parameters)?.unwrap_or_default();
    to_value(store.deferred_jobs().find(&filter, from, PAGE_LEN).await?)
}

async fn list_tasks(store: &Store, parameters: &Parameters) -> Result<Value, QueryError> {
    let queue = store.queue::<Value>(operator_key(text(parameters, "queue")));
    let filter = match text(parameters, "state") {
        "due" => TaskFilter::Due,
        "delayed" => TaskFilter::Delayed,
        "running" => TaskFilter::Running,
        "dead" => {
            let after = cursor::<DeadLetterCursor>(parameters)?;
            return match text(parameters, "reason") {
                "" => to_value(queue.dead_letters(after, PAGE_LEN).await?),
                reason => to_value(queue.find_dead_letters(reason, after, PAGE_LEN).await?),
            };
        }
        _ => return Err(QueryError::Invalid("unknown state".to_owned())),
    };
    let from = cursor::<TaskCursor>(parameters)?.unwrap_or_default();
    to_value(queue.tasks(filter, from, PAGE_LEN).await?)
}

fn text<'a>(parameters: &'a Parameters, name: &str) -> &'a str {
    parameters.get(name).map_or("", String::as_str)
}

fn cursor<C: FromStr>(parameters: &Parameters) -> Result<Option<C>, QueryError> {
    match text(parameters, "cursor") {
        "" => Ok(None),
        text => match text.parse() {
            Ok(cursor) => Ok(Some(cursor)),
            Err(_) => Err(QueryError::Invalid("the cursor could not be parsed".to_owned())),
        },
    }
}

/// Adds a member to a JSON object.
pub(super) fn with_member(mut document: Value, name: &str, value: impl Into<Value>) -> Value {
    if let Some(members) = document.as_object_mut() {
        members.insert(name.to_owned(), value.into());
    }
    document
}

fn to_value(document: impl Serialize) -> Result<Value, QueryError> {
    Ok(serde_json::to_value(document).unwrap_or(Value::Null))
}
