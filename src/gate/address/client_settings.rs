//! Constructors and settings of `ClientAddress`.

use std::sync::Arc;

use super::{
    client_address::{AddressHeader, ClientAddress, MissingAddress, ProxyTrust},
    network_set::NetworkSet,
};
use crate::error::{Error, expect_setting};

/// Upper bound of `behind_hops`; equal to the number of elements that are read.
const MAX_HOPS: usize = 32;

impl ClientAddress {
    /// Uses the peer of the socket and ignores all headers.
    #[must_use]
    pub fn peer() -> Self {
        Self::with_trust(ProxyTrust::PeerOnly)
    }

    /// Trusts proxies of these networks (CIDR, or single addresses), which append to
    /// `X-Forwarded-For`.
    ///
    /// ```
    /// # use std::{convert::Infallible, net::SocketAddr, time::Duration};
    /// # use http::{Request, Response};
    /// # use lockgate::{ClientAddress, Quota, Store};
    /// # use lockgate::{middleware::PlainHttp, rate_limit::RateLimitLayer};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let handler = service_fn(async |_: Request<Body>| {
    /// #     Ok::<_, Infallible>(Response::new(Body::default()))
    /// # });
    /// let quota = Quota::requests(1).per(Duration::from_secs(60));
    /// let client = ClientAddress::behind_proxies(["10.0.0.0/8"]);
    /// let limit = RateLimitLayer::<PlainHttp>::by_client(client, quota).store(&Store::memory());
    /// let service = limit.layer(handler);
    ///
    /// let proxy: SocketAddr = "10.0.0.1:4711".parse()?;
    /// let request = |client: &str| {
    ///     let request = Request::get("/").extension(proxy);
    ///     request.header("x-forwarded-for", client).body(Body::default())
    /// };
    /// assert_eq!(service.clone().oneshot(request("192.0.2.1")?).await?.status(), 200);
    /// assert_eq!(service.clone().oneshot(request("192.0.2.1")?).await?.status(), 429);
    /// assert_eq!(service.oneshot(request("192.0.2.2")?).await?.status(), 200);
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    ///
    /// If the list is empty, or if an item is not a network. For networks from a configuration use
    /// [`try_behind_proxies`](Self::try_behind_proxies).
    #[must_use]
    pub fn behind_proxies<S: AsRef<str>>(proxies: impl IntoIterator<Item = S>) -> Self {
        expect_setting(Self::try_behind_proxies(proxies))
    }

    /// Like [`behind_proxies`](Self::behind_proxies), for networks from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the list is empty, or if an item is not a
    /// network.
    pub fn try_behind_proxies<S: AsRef<str>>(
        proxies: impl IntoIterator<Item = S>,
    ) -> Result<Self, Error> {
        let proxies = NetworkSet::try_parse("ClientAddress::behind_proxies", proxies)?;
        if proxies.is_empty() {
            return Err(Error::setting(
                "ClientAddress::behind_proxies: name at least one network, or use peer()",
            ));
        }
        Ok(Self::with_trust(ProxyTrust::Proxies(Arc::new(proxies))))
    }

    /// Trusts a fixed number of proxies, 1 to 32, each of which appends to `X-Forwarded-For`: the
    /// client is the `hops`-th element from the right.
    ///
    /// Every peer of this server counts as the nearest proxy, so only proxies may be able to
    /// connect to it. Prefer [`behind_proxies`](Self::behind_proxies) if the addresses of the
    /// proxies are known. A request with fewer elements did not pass all proxies; its address is
    /// [missing](Self::on_missing).
    ///
    /// # Panics
    ///
    /// If `hops` is not within 1 to 32. For a number from a configuration use
    /// [`try_behind_hops`](Self::try_behind_hops).
    #[must_use]
    pub fn behind_hops(hops: usize) -> Self {
        expect_setting(Self::try_behind_hops(hops))
    }

    /// Like [`behind_hops`](Self::behind_hops), for a number from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `hops` is not within 1 to 32.
    pub fn try_behind_hops(hops: usize) -> Result<Self, Error> {
        if !(1..=MAX_HOPS).contains(&hops) {
            return Err(Error::setting(format!(
                "ClientAddress::behind_hops: takes 1 to {MAX_HOPS} proxies, not {hops}"
            )));
        }
        Ok(Self::with_trust(ProxyTrust::Hops(hops)))
    }

    fn with_trust(proxy_trust: ProxyTrust) -> Self {
        let address_header = AddressHeader::List("x-forwarded-for".into());
        Self { proxy_trust, address_header, ipv6_prefix: 64, on_missing: MissingAddress::default() }
    }

    /// Reads `Forwarded` (RFC 7239) instead of `X-Forwarded-For`.
    #[must_use]
    pub fn forwarded_header(mut self) -> Self {
        self.address_header = AddressHeader::Forwarded;
        self
    }

    /// Reads this header instead of `X-Forwarded-For`: one address, or a list of addresses.
    ///
    /// # Panics
    ///
    /// If `name` is not a valid header name. For a name from a configuration use
    /// [`try_header`](Self::try_header).
    #[must_use]
    pub fn header(self, name: &str) -> Self {
        expect_setting(self.try_header(name))
    }

    /// Like [`header`](Self::header), for a name from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `name` is not a valid header name.
    pub fn try_header(mut self, name: &str) -> Result<Self, Error> {
        if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
            let sentence = format!("ClientAddress::header: `{name}` is not a header name");
            return Err(Error::setting(sentence));
        }
        self.address_header = AddressHeader::List(name.to_ascii_lowercase().into());
        Ok(self)
    }

    /// Sets the number of bits by which IPv6 addresses count, 32 to 128. Default 64: a single host
    /// usually has that many addresses to choose from, and many sites have a block of 56 or 48.
    ///
    /// # Panics
    ///
    /// If `bits` is not within 32 to 128. For a number from a configuration use
    /// [`try_ipv6_prefix`](Self::try_ipv6_prefix).
    #[must_use]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        expect_setting(self.try_ipv6_prefix(bits))
    }

    /// Like [`ipv6_prefix`](Self::ipv6_prefix), for a number from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `bits` is not within 32 to 128.
    pub fn try_ipv6_prefix(mut self, bits: u8) -> Result<Self, Error> {
        if !(32..=128).contains(&bits) {
            return Err(Error::setting(format!(
                "ClientAddress::ipv6_prefix: takes 32 to 128 bits, not {bits}"
            )));
        }
        self.ipv6_prefix = bits;
        Ok(self)
    }

    /// Sets the reaction to a request without a client address. Default [`MissingAddress::Refuse`].
    #[must_use]
    pub fn on_missing(mut self, on_missing: MissingAddress) -> Self {
        self.on_missing = on_missing;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn invalid_settings_are_config_errors() {
        let refused = [
            (ClientAddress::try_behind_proxies(["10.0.0.0/33"]), "behind_proxies: `10.0.0.0/33`"),
            (ClientAddress::try_behind_proxies([""; 0]), "behind_proxies: name at least one"),
            (ClientAddress::try_behind_hops(0), "behind_hops: takes 1 to 32"),
            (ClientAddress::peer().try_header("x y"), "header: `x y`"),
            (ClientAddress::peer().try_ipv6_prefix(129), "ipv6_prefix: takes 32 to 128"),
        ];
        for (result, sentence) in refused {
            let error = result.expect_err(sentence);
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(
                error.to_string().starts_with(&format!("ClientAddress::{sentence}")),
                "{error}"
            );
        }
        let address = ClientAddress::try_behind_hops(2).expect("valid");
        let address = address.try_header("x-real-ip").expect("valid").try_ipv6_prefix(56);
        let panicking = ClientAddress::behind_hops(2).header("x-real-ip").ipv6_prefix(56);
        assert_eq!(address.expect("valid"), panicking);
    }
}
