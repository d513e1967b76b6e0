//! [`Operator`]: a person or program that operates a service.

use super::permission::Permission;

/// Longest name of an operator, in characters.
const MAX_NAME_CHARS: usize = 64;

/// Person or program that operates a service: a name for the audit log, and a permission.
///
/// ```
/// use lockgate::admin::{Operator, Permission};
///
/// let ada = Operator::new("ada", Permission::Act);
/// assert!(ada.may(Permission::Look) && !ada.may(Permission::SeePayloads));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operator {
    name: String,
    permission: Permission,
}

impl Operator {
    /// Creates an operator. The name is cut to 64 characters, and control characters are removed.
    #[must_use]
    pub fn new(name: &str, permission: Permission) -> Self {
        let printable = name.chars().filter(|character| !character.is_control());
        Self { name: printable.take(MAX_NAME_CHARS).collect(), permission }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the highest permission.
    #[must_use]
    pub fn permission(&self) -> Permission {
        self.permission
    }

    /// Returns true if the operator has this permission.
    #[must_use]
    pub fn may(&self, permission: Permission) -> bool {
        self.permission >= permission
    }
}
