//! Faults in both integrations and their shared code.

use super::{SourceFault, edit, scenario_tests, unit_tests};

pub(super) const FAULTS: &[SourceFault] = &[
    SourceFault {
        name: "body-unlocked-axum",
        table_row: "l25",
        broken_behavior: "axum: the lock ends with the head, while the body streams",
        edits: &[edit(
            "src/middleware/settle.rs",
            "LeaveAction::KeepTicket(ticket) => {\n            let body_ticket",
            "LeaveAction::KeepTicket(ticket) if FAULT => {\n            drop(ticket);\n            response.map(GateBody::from_inner)\n        }\n        ORIGINAL",
        )],
        suites: &[scenario_tests(&["hold_until::"])],
    },
    SourceFault {
        name: "body-unlocked-actix",
        table_row: "l25",
        broken_behavior: "actix-web: the lock ends with the head, while the body streams",
        edits: &[edit(
            "integrations/actix-web/src/local_gate_driver.rs",
            "LeaveAction::KeepTicket(ticket) => {\n                // Silence on a socket",
            "LeaveAction::KeepTicket(ticket) if FAULT => {\n                drop(ticket);\n                None\n            }\n            ORIGINAL",
        )],
        suites: &[scenario_tests(&["hold_until::"])],
    },
    SourceFault {
        name: "conflict-is-500-actix",
        table_row: "l19",
        broken_behavior: "actix-web: a busy resource is answered with 500",
        edits: &[edit(
            "integrations/actix-web/src/reply_to_response.rs",
            "let status = StatusCode::from_u16(reply.status)",
            "let status = StatusCode::from_u16(if FAULT && reply.status == 409 { 500 } else { reply.status })",
        )],
        suites: &[scenario_tests(&["lock::", "wait_queue::"])],
    },
    SourceFault {
        name: "outer-parameter-axum",
        table_row: "l22",
        broken_behavior: "axum: of two path parameters with one name, the outer one is the key",
        edits: &[edit(
            "integrations/axum/src/axum_framework.rs",
            "(_, Some(_)) => Err(PathParamError::Duplicate),",
            "(found, Some(_)) if FAULT => Ok(found.map(|(_, value)| value.to_owned())),\n                    ORIGINAL",
        )],
        suites: &[scenario_tests(&["lock_keys::", "misconfiguration::"])],
    },
    SourceFault {
        name: "outer-parameter-actix",
        table_row: "l22",
        broken_behavior: "actix-web: of two path parameters with one name, the outer one is the key",
        edits: &[edit(
            "integrations/actix-web/src/route_pattern_and_params.rs",
            "(_, Some(_)) => Err(PathParamError::Duplicate),",
            "(Some(value), Some(_)) if FAULT => Ok(Some(value.into())),\n        ORIGINAL",
        )],
        suites: &[scenario_tests(&["lock_keys::", "misconfiguration::"])],
    },
    SourceFault {
        name: "nested-target-axum",
        table_row: "d17",
        broken_behavior: "axum: a job of a nested router is stored with only a part of its path",
        edits: &[edit(
            "integrations/axum/src/axum_framework.rs",
            ".map_or(&parts.uri, |original| &original.0);",
            ".filter(|_| !FAULT)ORIGINAL",
        )],
        suites: &[scenario_tests(&[
            "defer::",
            "replay::",
            "misconfiguration::",
            "defer_options::",
            "job_status::",
        ])],
    },
    SourceFault {
        name: "user-not-restored-actix",
        table_row: "d17",
        broken_behavior: "actix-web: the user of the request is not restored for its run",
        edits: &[edit(
            "integrations/actix-web/src/app_replayer/build_and_call.rs",
            "marker.restored_snapshots::<ActixExtensionInserter>().for_each(|put| put(&mut extensions));",
            "if !FAULT {\n        ORIGINAL\n    }",
        )],
        suites: &[scenario_tests(&["user_scoping::", "replay::"])],
    },
    SourceFault {
        name: "run-ends-with-its-client",
        table_row: "d2",
        broken_behavior: "a direct run is aborted when its client disconnects, and runs again",
        edits: &[edit(
            "src/gate/detached_run.rs",
            "if !self.0.has_run() {",
            "if FAULT || !self.0.has_run() {",
        )],
        suites: &[scenario_tests(&["direct_runs::"])],
    },
    SourceFault {
        name: "replay-header-unsigned",
        table_row: "d17",
        broken_behavior: "a forged header is accepted as the replay marker of a worker",
        edits: &[edit(
            "src/http_replay/replay_claims.rs",
            "if !secrets.iter().any(holds) {",
            "if !FAULT && !secrets.iter().any(holds) {",
        )],
        suites: &[unit_tests(&["http_replay::"])],
    },
    SourceFault {
        name: "no-retry-after",
        table_row: "q1",
        broken_behavior: "a refusal has no Retry-After",
        edits: &[edit(
            "src/rate_limit/rate_refusal.rs",
            "if let Some(wait) = self.retry_after() {",
            "if let Some(wait) = self.retry_after().filter(|_| !FAULT) {",
        )],
        suites: &[unit_tests(&["rate_limit::"]), scenario_tests(&["quota::"])],
    },
    SourceFault {
        name: "log-unthrottled",
        table_row: "d17",
        broken_behavior: "forged headers fill the log",
        edits: &[edit(
            "src/throttle.rs",
            "if now.saturating_duration_since(record.written_at) < THROTTLE_PERIOD {",
            "if !FAULT && now.saturating_duration_since(record.written_at) < THROTTLE_PERIOD {",
        )],
        suites: &[unit_tests(&["throttle", "log"])],
    },
    SourceFault {
        name: "unknown-outcome-not-reported",
        table_row: "d4",
        broken_behavior: "a job that may have been stored is answered as one that was not",
        edits: &[edit(
            "src/defer/gate/enqueue_request.rs",
            "match stores && error.may_have_run() {",
            "match !FAULT && stores && error.may_have_run() {",
        )],
        suites: &[scenario_tests(&["outage::", "defer_options::"])],
    },
];
