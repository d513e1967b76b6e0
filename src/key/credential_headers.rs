//! List of headers that carry a credential. It decides which headers are stored with a job and
//! which values are readable in a key.
//!
//! A header belongs here if its value alone is enough to impersonate the client. Not listed are:
//!
//! - CSRF tokens: they are useless without their cookie, and frameworks that check them expect to
//!   find them in a deferred run.
//! - Session and client ids (`X-Session-Id`, `X-Client-Id`): most are for tracing. An application
//!   in which one opens a session names it with `credential_header`.

/// Full names, in lower case.
const CREDENTIAL_NAMES: &[&str] = &[
    // HTTP itself: RFC 9110 section 11, RFC 6265.
    "authorization",
    "proxy-authorization",
    "cookie",
    // Security tokens of AWS requests (Signature Version 4).
    "x-amz-security-token",
    // Gateways that sell or meter an API: Azure API Management and Functions, RapidAPI.
    "ocp-apim-subscription-key",
    "x-functions-key",
    "x-rapidapi-key",
    // Azure Resource Manager, for further tenants.
    "x-ms-authorization-auxiliary",
    // GitLab: users, jobs, deployments, and the shared secret of a webhook.
    "private-token",
    "job-token",
    "deploy-token",
    "x-gitlab-token",
    // HashiCorp.
    "x-vault-token",
    "x-consul-token",
    // Logins without a standard.
    "x-token",
];

/// Ends of names, alone or after any prefix and a hyphen: `X-Api-Key`, `X-Goog-Api-Key`.
const CREDENTIAL_SUFFIXES: &[&str] = &[
    // Copies of `Authorization` made by proxies: Cloud Run, nginx, Envoy.
    "authorization",
    "authorization-token",
    // API keys.
    "api-key",
    "apikey",
    "api-token",
    "auth-key",
    "access-key",
    "secret-key",
    // OAuth 2.0 and OpenID Connect: oauth2-proxy, Shopify and others.
    "access-token",
    "refresh-token",
    "id-token",
    "bearer-token",
    // Secrets of OAuth clients; Cloudflare Access, for services.
    "client-secret",
    // Logins without a standard: OpenStack (Keystone, Swift, Ironic) and many others.
    "auth-token",
    "authentication-token",
    "session-token",
    "user-token",
    "subject-token",
    "service-token",
    "storage-token",
    // Signed statements of an authenticating proxy: Google IAP, Cloudflare Access, WSO2.
    "jwt",
    "jwt-assertion",
    "jwt-token",
];

/// Starts of names: AWS load balancers, and Azure App Service with its providers.
const CREDENTIAL_PREFIXES: &[&str] = &["x-amzn-oidc-", "x-ms-token-"];

/// Returns the list entry that covers this lower-case name.
pub(crate) fn matching_credential(name: &str) -> Option<&'static str> {
    let has_suffix = |suffix: &str| {
        let name_prefix = name.strip_suffix(suffix);
        name_prefix.is_some_and(|name_prefix| name_prefix.is_empty() || name_prefix.ends_with('-'))
    };
    let full_name = CREDENTIAL_NAMES.iter().find(|credential_name| **credential_name == name);
    let suffix = || CREDENTIAL_SUFFIXES.iter().find(|suffix| has_suffix(suffix));
    let prefix = || CREDENTIAL_PREFIXES.iter().find(|prefix| name.starts_with(**prefix));
    full_name.or_else(suffix).or_else(prefix).copied()
}

/// Returns true if a header of this lower-case name carries a credential.
pub(crate) fn is_credential(name: &str) -> bool {
    matching_credential(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_credential_headers_are_recognized() {
        let names = "authorization proxy-authorization cookie x-api-key api-key apikey x-apikey \
                     x-auth-token x-access-token x-forwarded-access-token x-amz-security-token \
                     x-auth-request-access-token x-goog-api-key x-goog-iap-jwt-assertion \
                     cf-access-jwt-assertion cf-access-token x-ms-token-aad-access-token \
                     x-ms-token-google-refresh-token x-vault-token private-token x-gitlab-token \
                     x-amzn-oidc-data x-amzn-oidc-accesstoken x-shopify-access-token \
                     x-forwarded-authorization x-serverless-authorization x-session-token \
                     x-ms-token-twitter-access-token-secret dd-api-key x-goog-iam-authorization-token \
                     cf-access-client-secret x-client-secret x-token x-authentication-token x-auth-key \
                     x-user-token x-subject-token x-service-token x-storage-token x-jwt-token jwt-token \
                     x-access-key access-key x-secret-key secret-key";
        for name in names.split_ascii_whitespace() {
            assert!(is_credential(name), "{name}");
        }
    }

    #[test]
    fn other_headers_are_not_credentials() {
        let names = "x-csrf-token x-xsrf-token x-session-id x-request-id idempotency-key host \
                     content-type x-user-id x-account x-tenant paid-token x-capi-keys \
                     x-continuation-token signature x-forwarded-for forwarded xapi-keyring token x-page-token \
                     x-cursor-token access-key-id x-secret-key-version";
        for name in names.split_ascii_whitespace() {
            assert!(!is_credential(name), "{name}");
        }
    }
}
