//! [`CheckSlot`]: at most one check of the store for the pages of this process.

use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::{admin::AdminError, store::Store};

/// Held by the running check. Reading the whole store several times at once would only be slower.
#[derive(Debug, Default)]
pub(super) struct CheckSlot(pub(super) Mutex<()>);

impl CheckSlot {
    /// Checks the store and returns the report, unless a check for another page runs.
    pub(super) async fn run_check(store: &Store) -> Result<Value, AdminError> {
        let slot = store.extension::<Self>();
        let Ok(_running) = slot.0.try_lock() else {
            let text = "this process runs a check already: try again when it has ended";
            return Err(AdminError::NotPossible(text.to_owned()));
        };
        let report = store.check().run().await?;
        let findings = report.findings.iter().map(|finding| {
            json!({
                "kind": finding.kind.description(),
                "name": finding.name,
                "detail": finding.detail,
                "is_fault": finding.kind.is_fault(),
                "repaired": finding.repaired,
            })
        });
        let findings = findings.collect::<Vec<_>>();
        Ok(json!({ "summary": report.summary(), "findings": findings }))
    }
}
