//! [`ConsoleRequest`]: an admitted request of the console, and its response.

use std::collections::HashMap;

use percent_encoding::percent_decode_str;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    check_slot::CheckSlot,
    console_action::ConsoleAction,
    console_assets::{asset, page, with_security_headers},
    console_queries::{QueryError, answer_query},
    console_reply::ConsoleReply,
    perform_action::perform_action,
    snapshot_feed::SnapshotFeed,
};
use crate::{
    admin::{AdminError, Operator},
    reply::{Reply, problem},
    store::Store,
};

/// Route of a request to the console.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ConsoleRoute {
    Page,
    Asset(String),
    Session,
    Events,
    Snapshot,
    Query(String, HashMap<String, String>),
    Action,
}

impl ConsoleRoute {
    pub(super) fn parse(method: &str, path: &str, query: &str) -> Result<Self, Reply> {
        let route = match path.split_once('/') {
            None if path.is_empty() => Self::Page,
            Some(("assets", name)) => Self::Asset(name.to_owned()),
            Some(("api", "session")) => Self::Session,
            Some(("api", "events")) => Self::Events,
            Some(("api", "snapshot")) => Self::Snapshot,
            Some(("api", "actions")) => Self::Action,
            Some(("api", name)) => Self::Query(name.to_owned(), parse_query(query)),
            _ => return Err(not_found()),
        };
        let allowed = if route == Self::Action { "POST" } else { "GET, HEAD" };
        if allowed.split(", ").any(|allowed| allowed == method) {
            return Ok(route);
        }
        let reply = Reply::problem(405, problem::METHOD_NOT_ALLOWED, "Method not allowed");
        Err(reply.header("allow", allowed))
    }

    pub(super) fn is_action(&self) -> bool {
        *self == Self::Action
    }
}

/// Parses a query of pairs, decoded; a repeated name keeps its last value.
fn parse_query(query: &str) -> HashMap<String, String> {
    let decode =
        |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (decode(name), decode(value)))
        .collect()
}

/// Request of the console that was admitted.
#[derive(Debug, Clone)]
pub struct ConsoleRequest {
    pub(super) store: Store,
    pub(super) operator: Operator,
    pub(super) route: ConsoleRoute,
}

impl ConsoleRequest {
    /// Returns true if [`execute`](Self::execute) needs the body of the request.
    #[must_use]
    pub fn wants_body(&self) -> bool {
        self.route.is_action()
    }

    /// Answers the request. `body` is empty if it is not [wanted](Self::wants_body).
    ///
    /// Cancel safe: an action that has begun goes on, and is recorded in the audit log.
    pub async fn execute(self, body: &[u8]) -> ConsoleReply {
        let Self { store, operator, route } = self;
        let reply = match route {
            ConsoleRoute::Page => page(),
            ConsoleRoute::Asset(name) => asset(&name).unwrap_or_else(not_found),
            ConsoleRoute::Session => {
                json_reply(&json!({ "name": operator.name(), "may": operator.permission() }))
            }
            ConsoleRoute::Events => {
                let head = Reply::new(200)
                    .header("content-type", "text/event-stream")
                    // Stops nginx from buffering the events.
                    .header("x-accel-buffering", "no");
                return ConsoleReply::Events(
                    with_security_headers(head),
                    SnapshotFeed::open_stream(store),
                );
            }
            ConsoleRoute::Snapshot => Reply::new(200)
                .header("content-type", "application/json")
                .body(store.extension::<SnapshotFeed>().latest(&store).await),
            ConsoleRoute::Query(name, parameters) => {
                match answer_query(&store, &name, &parameters).await {
                    Ok(document) => json_reply(&document),
                    Err(error) => error_reply(&error),
                }
            }
            ConsoleRoute::Action => answer_action(&store, operator, body).await,
        };
        ConsoleReply::Complete(with_security_headers(reply))
    }
}

async fn answer_action(store: &Store, operator: Operator, body: &[u8]) -> Reply {
    let result = match serde_json::from_slice::<ConsoleAction>(body) {
        Ok(ConsoleAction::Check {}) => CheckSlot::run_check(store).await,
        Ok(action) => {
            let text = perform_action(store, operator, action).await;
            text.map(|text| json!({ "text": text }))
        }
        Err(error) => {
            return bad_request(&format!("This is not an action of the console: {error}"));
        }
    };
    match result {
        Ok(document) => json_reply(&document),
        Err(error) => error_reply(&error.into()),
    }
}

fn json_reply(document: &impl Serialize) -> Reply {
    let value = serde_json::to_value(document).unwrap_or(Value::Null);
    Reply::json(200, &value)
}

fn bad_request(title: &str) -> Reply {
    Reply::problem(400, problem::BAD_CONSOLE_REQUEST, title)
}

fn not_found() -> Reply {
    Reply::problem(404, problem::NOT_IN_CONSOLE, "Not found")
}

fn error_reply(error: &QueryError) -> Reply {
    match error {
        QueryError::Unknown => not_found(),
        QueryError::Invalid(text) => bad_request(text),
        QueryError::Admin(AdminError::NotPermitted) => {
            Reply::problem(403, problem::NOT_AUTHORIZED, "This operator may not do that")
        }
        QueryError::Admin(AdminError::Invalid(text)) => bad_request(text),
        QueryError::Admin(AdminError::NotPossible(text)) => {
            Reply::problem(409, problem::NOT_IN_CONSOLE, text)
        }
        QueryError::Admin(AdminError::Store(_)) => Reply::store_unavailable(),
    }
}
