//! TLS: whom to trust, and how to show who one is.
//!
//! rustls does the work; the cryptography behind it is the application's choice, made once for the
//! whole process. A choice that nobody has made is told at the start, where it can be mended.

use super::url::Node;
use crate::error::Error;
use redis::ConnectionAddr;

/// Certificates of the application's own.
#[derive(Clone, Default)]
pub(in super::super) struct Trust {
    /// PEM; those of the system if there is none.
    pub(in super::super) authority: Option<Vec<u8>>,
    /// PEM: the chain and its key.
    pub(in super::super) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Trust {
    pub(super) fn is_set(&self) -> bool {
        self.authority.is_some() || self.client.is_some()
    }

    /// Whether connections can be made at all.
    #[cfg(feature = "tls")]
    pub(super) fn check(&self, tls: bool) -> Result<(), Error> {
        if tls && rustls::crypto::CryptoProvider::get_default().is_none() {
            return Err(Error::config(
                "rediss:// needs a crypto provider: the application installs one before it connects, with rustls::crypto::ring::default_provider().install_default() or the same of aws_lc_rs",
            ));
        }
        self.check_use(tls)
    }

    #[cfg(not(feature = "tls"))]
    pub(super) fn check(&self, tls: bool) -> Result<(), Error> {
        if tls {
            return Err(Error::config("rediss:// needs lockgate's feature `tls`"));
        }
        self.check_use(tls)
    }

    fn check_use(&self, tls: bool) -> Result<(), Error> {
        if self.is_set() && !tls {
            return Err(Error::config("certificates are of use with rediss:// alone"));
        }
        Ok(())
    }

    #[cfg(feature = "tls")]
    pub(super) fn certificates(&self) -> Option<redis::TlsCertificates> {
        let client = self.client.as_ref().map(|(chain, key)| redis::ClientTlsConfig {
            client_cert: chain.clone(),
            client_key: key.clone(),
        });
        self.is_set().then(|| redis::TlsCertificates {
            client_tls: client,
            root_cert: self.authority.clone(),
        })
    }
}

pub(super) fn address(node: &Node, tls: bool) -> ConnectionAddr {
    let Node { host, port } = node.clone();
    if tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    }
}
