//! [`BasicAuth`]: a guard by name and password.

use std::{env, fmt};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use sha2::{Digest as _, Sha256};

use super::{
    console_guard::{ConsoleGuard, GuardVerdict},
    guard_request::GuardRequest,
};
use crate::admin::{Operator, Permission};

/// Least length of a password. A guess costs one request, and nothing limits their rate here.
const MIN_PASSWORD_LEN: usize = 12;

/// Guard by one name and password (RFC 7617). Created by [`BasicAuth::from_env`].
pub struct BasicAuth {
    operator: Operator,
    /// SHA-256 of `name:password`, so that a comparison takes the same time for every guess.
    credentials: [u8; 32],
}

/// Why [`BasicAuth::from_env`] found no usable credentials. The text names the fix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BasicAuthError(&'static str);

impl fmt::Display for BasicAuthError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }
}

impl std::error::Error for BasicAuthError {}

impl BasicAuth {
    /// Creates a guard from the environment:
    ///
    /// | variable | value |
    /// |---|---|
    /// | `LOCKGATE_CONSOLE_USER` | the operator's name, without `:` |
    /// | `LOCKGATE_CONSOLE_PASSWORD` | at least 12 bytes |
    /// | `LOCKGATE_CONSOLE_MAY` | `look` (default), `act` or `see-payloads` |
    ///
    /// A browser sends the password with every request, so serve the console over TLS.
    ///
    /// # Errors
    ///
    /// A variable is missing or has no usable value.
    pub fn from_env() -> Result<Self, BasicAuthError> {
        let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let user = variable("LOCKGATE_CONSOLE_USER");
        let password = variable("LOCKGATE_CONSOLE_PASSWORD");
        let may = variable("LOCKGATE_CONSOLE_MAY");
        Self::new(user.as_deref(), password.as_deref(), may.as_deref().unwrap_or("look"))
    }

    pub(super) fn new(
        user: Option<&str>,
        password: Option<&str>,
        may: &str,
    ) -> Result<Self, BasicAuthError> {
        let user = user
            .filter(|name| !name.contains(':'))
            .ok_or(BasicAuthError("set LOCKGATE_CONSOLE_USER to a name without `:`"))?;
        let password = password
            .filter(|password| password.len() >= MIN_PASSWORD_LEN)
            .ok_or(BasicAuthError("set LOCKGATE_CONSOLE_PASSWORD to at least 12 bytes"))?;
        let permission = Permission::parse(may)
            .ok_or(BasicAuthError("LOCKGATE_CONSOLE_MAY is `look`, `act` or `see-payloads`"))?;
        let credentials = Sha256::digest(format!("{user}:{password}")).into();
        Ok(Self { operator: Operator::new(user, permission), credentials })
    }

    fn is_authentic(&self, request: &GuardRequest) -> bool {
        let sent = request
            .header("authorization")
            .and_then(|value| value.split_at_checked(6))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"basic "))
            .and_then(|(_, encoded)| BASE64_STANDARD.decode(encoded.trim_ascii()).ok());
        let digest: [u8; 32] = Sha256::digest(sent.unwrap_or_default()).into();
        // No early exit: the time says nothing about the digest of the credentials.
        let pairs = digest.iter().zip(&self.credentials);
        pairs.fold(0, |difference, (left, right)| difference | (left ^ right)) == 0
    }
}

impl<N: ?Sized> ConsoleGuard<N> for BasicAuth {
    fn admit(&self, request: &GuardRequest, _: &N) -> GuardVerdict {
        if self.is_authentic(request) {
            GuardVerdict::Admit(self.operator.clone())
        } else {
            GuardVerdict::Challenge
        }
    }
}

impl fmt::Debug for BasicAuth {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("BasicAuth")
            .field("operator", &self.operator)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_variables_are_refused_with_the_fix() {
        let error =
            |user, password, may| BasicAuth::new(user, password, may).unwrap_err().to_string();
        let password = Some("long enough to use");
        assert!(error(None, password, "look").contains("LOCKGATE_CONSOLE_USER"));
        assert!(error(Some("a:b"), password, "look").contains("without `:`"));
        assert!(error(Some("ada"), Some("short"), "look").contains("12 bytes"));
        assert!(error(Some("ada"), password, "all").contains("LOCKGATE_CONSOLE_MAY"));
    }
}
