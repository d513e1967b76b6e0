//! TLS settings: trusted certificates, and the certificate of the client.
//!
//! rustls implements TLS. The application chooses its crypto provider, once for the whole process.
//! A missing provider is reported at construction, where it can be fixed.

use super::store_url::HostPort;
use crate::error::Error;
use redis::ConnectionAddr;

/// Certificates that the application provides.
#[derive(Clone, Default)]
pub(in super::super) struct RedisTlsSettings {
    /// CA certificates in PEM; `None` for those of the system.
    pub(in super::super) ca_certificate: Option<Vec<u8>>,
    /// Certificate chain and private key, both in PEM.
    pub(in super::super) client_identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl RedisTlsSettings {
    pub(super) fn is_set(&self) -> bool {
        self.ca_certificate.is_some() || self.client_identity.is_some()
    }

    /// Returns an error if no connection could be made with these settings.
    #[cfg(feature = "tls")]
    pub(super) fn validate(&self, tls: bool) -> Result<(), Error> {
        if tls && rustls::crypto::CryptoProvider::get_default().is_none() {
            return Err(Error::config(
                "rediss:// needs a crypto provider; install one before the store connects, by \
                 rustls::crypto::ring::default_provider().install_default() or the same of \
                 aws_lc_rs",
            ));
        }
        self.validate_use(tls)
    }

    #[cfg(not(feature = "tls"))]
    pub(super) fn validate(&self, tls: bool) -> Result<(), Error> {
        if tls {
            return Err(Error::config("rediss:// needs lockgate's feature `tls`"));
        }
        self.validate_use(tls)
    }

    fn validate_use(&self, tls: bool) -> Result<(), Error> {
        if self.is_set() && !tls {
            return Err(Error::config("certificates need a rediss:// URL"));
        }
        Ok(())
    }

    #[cfg(feature = "tls")]
    pub(super) fn certificates(&self) -> Option<redis::TlsCertificates> {
        let client_tls = self.client_identity.as_ref().map(|(chain, key)| redis::ClientTlsConfig {
            client_cert: chain.clone(),
            client_key: key.clone(),
        });
        self.is_set()
            .then(|| redis::TlsCertificates { client_tls, root_cert: self.ca_certificate.clone() })
    }
}

/// Returns a message if the error means that one side rejects the certificate of the other, which
/// is a configuration error and no outage.
#[cfg(feature = "tls")]
pub(super) fn certificate_error(error: &redis::RedisError) -> Option<String> {
    use std::{error::Error as StdError, io, sync::Arc};

    use rustls::{AlertDescription, Error as TlsError};

    let source = error.source()?;
    // redis-rs wraps the error in an `Arc` and returns the `Arc` as the source.
    let shared = source.downcast_ref::<Arc<dyn StdError + Send + Sync>>();
    let source = match shared {
        Some(shared) => shared.downcast_ref::<io::Error>(),
        None => source.downcast_ref::<io::Error>(),
    };
    let error = source?.get_ref()?;
    match error.downcast_ref::<TlsError>()? {
        TlsError::InvalidCertificate(reason) => Some(format!(
            "the server's certificate is not trusted: {reason}; see StoreBuilder::ca_certificate"
        )),
        TlsError::AlertReceived(
            AlertDescription::CertificateRequired | AlertDescription::HandshakeFailure,
        ) => Some(
            "the server requires a client certificate; see StoreBuilder::client_certificate"
                .to_owned(),
        ),
        TlsError::AlertReceived(
            reason @ (AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::DecryptError),
        ) => Some(format!("the server rejected the client certificate: {reason:?}")),
        TlsError::NoCertificatesPresented => Some("the server sent no certificate".to_owned()),
        _ => None,
    }
}

pub(super) fn connection_addr(node: &HostPort, tls: bool) -> ConnectionAddr {
    let HostPort { host, port } = node.clone();
    if tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    }
}
