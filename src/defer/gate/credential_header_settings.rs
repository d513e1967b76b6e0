//! Settings of `DeferLayer`: which headers are credentials, and which of them are stored.

use super::defer_layer::DeferLayer;
use crate::{
    error::{Error, expect_setting},
    gate::{RequestKind, try_parse_header_name},
};

impl<R: RequestKind> DeferLayer<R> {
    /// Stores a header that is dropped by default because it is a credential.
    ///
    /// Without this setting, a request with a credential is deferred only if the layer
    /// [carries](Self::for_user) its user; a warning is logged once for each header. A
    /// stored credential stays in the store while the request waits, and the run presents it as it
    /// was, so it may have expired by then. It does not identify an [owner](Self::owner): if the
    /// layer carries a snapshot and the request has none, its `Idempotency-Key` gets 500.
    ///
    /// Credentials are, in any case:
    ///
    /// - `Authorization`, `Proxy-Authorization`, and all names that end with `-Authorization`,
    ///   which are copies by proxies
    /// - `Cookie`
    /// - `Api-Key`, `ApiKey`, `Api-Token`, `Auth-Key`, `Access-Key`, `Secret-Key`, `Client-Secret`,
    ///   `Auth-Token`, `Authentication-Token`, `Authorization-Token`, `Access-Token`,
    ///   `Refresh-Token`, `Id-Token`, `Bearer-Token`, `Session-Token`, `User-Token`,
    ///   `Subject-Token`, `Service-Token`, `Storage-Token`, `Jwt`, `Jwt-Token` and `Jwt-Assertion`,
    ///   and all names that end with a hyphen and one of these, such as `X-Api-Key` and
    ///   `X-Forwarded-Access-Token`
    /// - `X-Token`
    /// - `X-Amz-Security-Token` and `X-Amzn-Oidc-*` of AWS, `X-Ms-Token-*`,
    ///   `X-Ms-Authorization-Auxiliary`, `X-Functions-Key` and `Ocp-Apim-Subscription-Key` of
    ///   Azure, `X-RapidApi-Key`
    /// - `Private-Token`, `Job-Token`, `Deploy-Token` and `X-Gitlab-Token` of GitLab,
    ///   `X-Vault-Token` and `X-Consul-Token` of HashiCorp
    /// - the headers of [`credential_header`](Self::credential_header)
    ///
    /// CSRF tokens are stored, since they are useless without the cookie.
    ///
    /// # Panics
    ///
    /// If `name` is not a valid header name. For a name from a configuration use
    /// [`try_keep_header`](Self::try_keep_header).
    #[must_use]
    pub fn keep_header(self, name: &str) -> Self {
        expect_setting(self.try_keep_header(name))
    }

    /// Like [`keep_header`](Self::keep_header), for a name from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `name` is not a valid header name.
    pub fn try_keep_header(self, name: &str) -> Result<Self, Error> {
        let name = try_parse_header_name("DeferLayer::keep_header", name)?;
        Ok(self.with_settings(|settings| settings.storage.header_filter.keep_headers.push(name)))
    }

    /// Declares a header, such as `X-Pass`, as a credential, like `Authorization` and the other
    /// headers that [`keep_header`](Self::keep_header) lists. It is not stored, and a request with
    /// it is deferred only if the layer [carries](Self::for_user) its user or the header is
    /// kept. Without this setting the header is stored with the request.
    ///
    /// # Panics
    ///
    /// If `name` is not a valid header name. For a name from a configuration use
    /// [`try_credential_header`](Self::try_credential_header).
    #[must_use]
    pub fn credential_header(self, name: &str) -> Self {
        expect_setting(self.try_credential_header(name))
    }

    /// Like [`credential_header`](Self::credential_header), for a name from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `name` is not a valid header name.
    pub fn try_credential_header(self, name: &str) -> Result<Self, Error> {
        let name = try_parse_header_name("DeferLayer::credential_header", name)?;
        Ok(self.with_settings(|settings| {
            settings.storage.header_filter.credential_headers.push(name);
        }))
    }
}
