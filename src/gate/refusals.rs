//! Refusals by gates within a remembered run.

use std::sync::Arc;

use parking_lot::Mutex;

use super::view::View;

/// Mark of a remembered run, for the gates further in. A status such as 429 tells that nothing has
/// run only if one of our gates answered it: the handler may choose the same.
///
/// A middleware that rebuilds the request loses the mark. Its refusals are unknown then, and the
/// request counts as one that may have run.
#[derive(Debug, Clone, Default)]
pub(crate) struct RememberedRun(Arc<Mutex<Refusals>>);

#[derive(Debug, Default)]
struct Refusals {
    /// Status of the last refusal.
    status: Option<u16>,
    /// Gates that the request has passed. A later refusal by one of them comes after a retry layer
    /// called it again, and the handler may have run in between.
    passed: Vec<GateId>,
}

/// Identity of a gate and its clones: the address of what they share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GateId(usize);

impl GateId {
    pub(crate) fn of<T>(shared: &Arc<T>) -> Self {
        Self(Arc::as_ptr(shared).addr())
    }
}

impl RememberedRun {
    /// Returns the run that the request belongs to, if there is one.
    pub(crate) fn of<V: View>(view: &V) -> Option<Self> {
        view.get()
    }

    /// Marks the request as this run, under the lock of `gate`.
    pub(crate) fn put<V: View>(self, view: &mut V, gate: GateId) {
        self.note_passed(gate);
        view.put(self);
    }

    /// Notes that `gate` lets the request pass.
    pub(crate) fn note_passed(&self, gate: GateId) {
        let mut refusals = self.0.lock();
        refusals.status = None;
        if !refusals.passed.contains(&gate) {
            refusals.passed.push(gate);
        }
    }

    /// Notes that `gate` answers the request with `status`.
    pub(crate) fn note_refused(&self, gate: GateId, status: u16) {
        let mut refusals = self.0.lock();
        refusals.status = Some(status).filter(|_| !refusals.passed.contains(&gate));
    }

    /// Returns the status of the refusal that kept the run from its handler.
    pub(crate) fn refusal(&self) -> Option<u16> {
        self.0.lock().status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_counts_until_a_gate_lets_the_request_pass() {
        let (outer, inner) = (Arc::new(1_u8), Arc::new(2_u8));
        let (outer, inner) = (GateId::of(&outer), GateId::of(&inner));
        let run = RememberedRun::default();
        run.note_passed(outer);
        assert_eq!(run.refusal(), None);
        run.note_refused(inner, 409);
        assert_eq!(run.refusal(), Some(409));
        // A retry layer in between calls it again.
        run.note_refused(inner, 429);
        assert_eq!(run.refusal(), Some(429));
        run.note_passed(inner);
        assert_eq!(run.refusal(), None, "the handler runs");
    }

    #[test]
    fn a_refusal_after_the_handler_may_have_run_does_not_count() {
        let gate = Arc::new(1_u8);
        let gate = GateId::of(&gate);
        let run = RememberedRun::default();
        run.note_passed(gate);
        run.note_refused(gate, 429);
        assert_eq!(run.refusal(), None);
    }
}
