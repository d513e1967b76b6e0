//! [`Admin`]: the actions of one operator.

use super::{
    admin_error::AdminError,
    audit_record::{AuditOutcome, AuditRecord},
    operator::Operator,
    permission::Permission,
};
use crate::store::Store;

/// Longest reason of an action, in characters.
const MAX_REASON_CHARS: usize = 200;

/// Longest target in the audit log, in characters: that of the longest key.
const MAX_TARGET_CHARS: usize = 512;

/// Actions of one operator. Created by [`Store::admin`].
///
/// Every action takes a reason, and is recorded with its outcome, also if the operator lacks the
/// permission. The record is written before the action begins; if it cannot be written, the action
/// is not done.
///
/// Cancel safety: an action whose future is dropped may have been done. Its record then says
/// [`Begun`](AuditOutcome::Begun).
#[derive(Debug, Clone)]
pub struct Admin {
    pub(super) store: Store,
    operator: Operator,
}

/// Action to be recorded.
pub(super) struct AdminAction<'a> {
    /// Name in the audit log.
    pub(super) name: &'static str,
    /// Permission that it needs.
    pub(super) needs: Permission,
    pub(super) target: &'a str,
    pub(super) reason: &'a str,
}

impl Store {
    /// Returns the actions of this operator.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// use lockgate::{Store, admin::{AdminError, Operator, Permission}};
    ///
    /// let reader = Store::memory().admin(Operator::new("ada", Permission::Look));
    /// let refused = reader.pause_jobs("deploy").await;
    /// assert!(matches!(refused, Err(AdminError::NotPermitted)));
    /// # }
    /// ```
    #[must_use]
    pub fn admin(&self, operator: Operator) -> Admin {
        Admin { store: self.clone(), operator }
    }
}

impl Admin {
    /// Returns the operator.
    #[must_use]
    pub fn operator(&self) -> &Operator {
        &self.operator
    }

    /// Performs an action that changes something, and records it.
    pub(super) async fn act<T>(
        &self,
        name: &'static str,
        target: &str,
        reason: &str,
        work: impl Future<Output = Result<T, AdminError>>,
    ) -> Result<T, AdminError> {
        self.perform(AdminAction { name, needs: Permission::Act, target, reason }, work).await
    }

    /// Checks the permission, and records the action before and after it.
    pub(super) async fn perform<T>(
        &self,
        action: AdminAction<'_>,
        work: impl Future<Output = Result<T, AdminError>>,
    ) -> Result<T, AdminError> {
        let reason = shorten(action.reason, MAX_REASON_CHARS);
        let refusal = self.refusal(action.needs, &reason);
        let outcome = refusal.as_ref().map_or(AuditOutcome::Begun, |(outcome, _)| outcome.clone());
        let mut record = AuditRecord {
            operator: self.operator.name().to_owned(),
            action: action.name.to_owned(),
            target: shorten(action.target, MAX_TARGET_CHARS),
            reason,
            outcome,
            recorded_us: 0,
        };
        let initial = to_json(&record);
        let backend = self.store.backend();
        let number = backend.append_audit_record(initial.clone()).await?;
        if let Some((_, error)) = refusal {
            return Err(error);
        }
        let result = work.await;
        record.outcome = match &result {
            Ok(_) => AuditOutcome::Done,
            Err(error) => AuditOutcome::Failed(shorten(&error.to_string(), MAX_REASON_CHARS)),
        };
        // The action has its own result. A record that stays `Begun` says that its end is unknown.
        drop(backend.replace_audit_record(number, initial, to_json(&record)).await);
        result
    }

    /// Returns why an action is not begun, if so. The permission comes first: an attempt without it
    /// is recorded as refused, also without a reason.
    fn refusal(&self, needs: Permission, reason: &str) -> Option<(AuditOutcome, AdminError)> {
        if !self.operator.may(needs) {
            return Some((AuditOutcome::Refused, AdminError::NotPermitted));
        }
        let text = "give a reason for the audit log".to_owned();
        let is_missing = reason.trim().is_empty();
        is_missing.then(|| (AuditOutcome::Failed(text.clone()), AdminError::Invalid(text)))
    }
}

/// Returns the first characters, without control characters.
fn shorten(text: &str, max_chars: usize) -> String {
    text.chars().filter(|character| !character.is_control()).take(max_chars).collect()
}

fn to_json(record: &AuditRecord) -> String {
    // A record of texts and numbers has a JSON form.
    serde_json::to_string(record).unwrap_or_default()
}
