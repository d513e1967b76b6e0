//! Both integrations, and what they share.

use super::{Fault, edit, rows, unit};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "body-unlocked-axum",
        row: "l25",
        breaks: "axum: the lock ends with the head, while the body streams",
        edits: &[edit(
            "src/middleware/settle.rs",
            "LeaveAction::KeepTicket(ticket) => {\n            let kept",
            "LeaveAction::KeepTicket(ticket) if FAULT => {\n            drop(ticket);\n            answer.map(GateBody::inner)\n        }\n        ORIGINAL",
        )],
        suites: &[rows(&["hold_until::"])],
    },
    Fault {
        name: "body-unlocked-actix",
        row: "l25",
        breaks: "actix-web: the lock ends with the head, while the body streams",
        edits: &[edit(
            "integrations/actix-web/src/gate_middleware.rs",
            "LeaveAction::KeepTicket(ticket) => {\n                // Silence on a socket",
            "LeaveAction::KeepTicket(ticket) if FAULT => {\n                drop(ticket);\n                None\n            }\n            ORIGINAL",
        )],
        suites: &[rows(&["hold_until::"])],
    },
    Fault {
        name: "conflict-is-500-actix",
        row: "l19",
        breaks: "actix-web: a busy resource is answered with 500",
        edits: &[edit(
            "integrations/actix-web/src/reply_response.rs",
            "let status = StatusCode::from_u16(reply.status)",
            "let status = StatusCode::from_u16(if FAULT && reply.status == 409 { 500 } else { reply.status })",
        )],
        suites: &[rows(&["lock::", "line::"])],
    },
    Fault {
        name: "outer-parameter-axum",
        row: "l22",
        breaks: "axum: of two path parameters of one name the outer one is locked",
        edits: &[edit(
            "integrations/axum/src/axum_framework.rs",
            "(_, Some(_)) => Err(PathParamError::Duplicate),",
            "(found, Some(_)) if FAULT => Ok(found.map(|(_, value)| value.to_owned())),\n                    ORIGINAL",
        )],
        suites: &[rows(&["keys::", "wiring::"])],
    },
    Fault {
        name: "outer-parameter-actix",
        row: "l22",
        breaks: "actix-web: of two path parameters of one name the outer one is locked",
        edits: &[edit(
            "integrations/actix-web/src/path_param.rs",
            "(_, Some(_)) => Err(PathParamError::Duplicate),",
            "(Some(value), Some(_)) if FAULT => Ok(Some(value.into())),\n        ORIGINAL",
        )],
        suites: &[rows(&["keys::", "wiring::"])],
    },
    Fault {
        name: "nested-target-axum",
        row: "d17",
        breaks: "axum: a request of a nested router is stored with a part of its path",
        edits: &[edit(
            "integrations/axum/src/axum_framework.rs",
            ".map_or(&parts.uri, |original| &original.0);",
            ".filter(|_| !FAULT)ORIGINAL",
        )],
        suites: &[rows(&["defer::", "replay::", "wiring::", "accepting::", "status::"])],
    },
    Fault {
        name: "user-not-restored-actix",
        row: "d17",
        breaks: "actix-web: a run does not have the user that its request came with",
        edits: &[edit(
            "integrations/actix-web/src/app_replayer.rs",
            "marker.restored_snapshots::<ActixExtensionInserter>().for_each(|put| put(&mut extensions));",
            "if !FAULT {\n        ORIGINAL\n    }",
        )],
        suites: &[rows(&["users::", "replay::"])],
    },
    Fault {
        name: "run-ends-with-its-client",
        row: "d2",
        breaks: "a remembered request stops when its client leaves, and runs again",
        edits: &[edit(
            "src/gate/detached_run.rs",
            "if !self.0.has_run() {",
            "if FAULT || !self.0.has_run() {",
        )],
        suites: &[rows(&["remembered::"])],
    },
    Fault {
        name: "replay-header-unsigned",
        row: "d17",
        breaks: "a forged header passes for a run of a worker",
        edits: &[edit(
            "src/remote/replay_claims.rs",
            "if !secrets.iter().any(holds) {",
            "if !FAULT && !secrets.iter().any(holds) {",
        )],
        suites: &[unit(&["remote::"])],
    },
    Fault {
        name: "no-retry-after",
        row: "q1",
        breaks: "a refused client is not told when to come back",
        edits: &[edit(
            "src/rate_limit/rate_refusal.rs",
            "if let Some(wait) = self.retry_after() {",
            "if let Some(wait) = self.retry_after().filter(|_| !FAULT) {",
        )],
        suites: &[unit(&["rate_limit::"]), rows(&["quota::"])],
    },
    Fault {
        name: "log-unthrottled",
        row: "d17",
        breaks: "forged headers fill the log",
        edits: &[edit(
            "src/throttle.rs",
            "if now.saturating_duration_since(line.written_at) < THROTTLE_PERIOD {",
            "if !FAULT && now.saturating_duration_since(line.written_at) < THROTTLE_PERIOD {",
        )],
        suites: &[unit(&["throttle", "log"])],
    },
    Fault {
        name: "unknown-outcome-not-told",
        row: "d4",
        breaks: "a request that may have been stored is answered as one that was not",
        edits: &[edit(
            "src/defer/gate/enqueue_request.rs",
            "match stores && error.may_have_run() {",
            "match !FAULT && stores && error.may_have_run() {",
        )],
        suites: &[rows(&["outage::", "accepting::"])],
    },
];
