//! [`RefusedSubject`]: a subject that a policy refuses often.

use serde::{Deserialize, Serialize};

/// Subject of a policy with its refusals in the last ten minutes or so.
///
/// The numbers are bounds: a process counts 64 subjects of a policy, and a new one takes the place
/// of the rarest. If it had `n` refusals of the policy in that time, it counts every subject with
/// more than `n / 64` of them, and the two bounds differ by at most `n / 64`. A refusal that
/// arrives while another one is being counted is counted without its subject, and adds 1 to the
/// difference.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RefusedSubject {
    /// Name of the subject, as in [`Key::operator_name`](crate::Key::operator_name).
    pub subject: String,
    /// Number of refusals that it had at least.
    pub refusals: u64,
    /// Number of refusals that it had at most.
    pub max_refusals: u64,
}
