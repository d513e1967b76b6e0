//! Secret that services share, to sign and verify delegations and remote runs.

use std::{fmt, sync::Arc};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::error::{Error, expect_setting};

/// Shortest secret in bytes: the length of the hash.
const MIN_SECRET_LEN: usize = 32;

/// Secret that services share, so that one can trust another's delegations and runs.
///
/// ```
/// # fn from_the_environment() -> Vec<u8> { vec![7; 32] }
/// use lockgate::SharedSecret;
///
/// let secret = SharedSecret::new(from_the_environment());
/// ```
#[derive(Clone)]
pub struct SharedSecret(Arc<[u8]>);

impl SharedSecret {
    /// Creates a secret from at least 32 random bytes.
    ///
    /// # Panics
    ///
    /// If there are fewer: a short secret can be guessed, and with it every lock can be passed. For
    /// a secret from the environment use [`try_new`](Self::try_new).
    #[must_use]
    pub fn new(secret: impl AsRef<[u8]>) -> Self {
        expect_setting(Self::try_new(secret))
    }

    /// Like [`new`](Self::new), for a secret from the environment.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if there are fewer than 32 bytes.
    pub fn try_new(secret: impl AsRef<[u8]>) -> Result<Self, Error> {
        let secret = secret.as_ref();
        if secret.len() < MIN_SECRET_LEN {
            return Err(Error::setting(format!(
                "SharedSecret::new: needs at least {MIN_SECRET_LEN} bytes from a random source, \
                 not {}",
                secret.len()
            )));
        }
        Ok(Self(secret.into()))
    }

    #[cfg(feature = "http-replay")]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    #[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
    pub(super) fn mac(&self, text: &str) -> Hmac<Sha256> {
        let mut signature: Hmac<Sha256> =
            Hmac::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        for part in ["lockgate-held", text] {
            signature.update(&(part.len() as u64).to_be_bytes());
            signature.update(part.as_bytes());
        }
        signature
    }
}

impl fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedSecret(..)")
    }
}
