//! TLS to a server that has it, and what is said of it where it does not fit.

mod several;

use std::{
    env,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use super::{
    SECOND, eventually, in_line,
    server::{free_port, patient},
};
use crate::{
    error::ErrorKind,
    store::{Store, StoreBuilder},
};

/// A directory of certificates: an authority, what it vouches for, and one of which nobody knows.
struct Certificates(PathBuf);

/// What a server is told of them.
const FILES: [[&str; 2]; 3] = [
    ["tls-cert-file", "server.crt"],
    ["tls-key-file", "server.key"],
    ["tls-ca-cert-file", "ca.crt"],
];

/// Made at once, unlike one of RSA.
const KEY: [&str; 4] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];

impl Certificates {
    fn make() -> Self {
        let name = format!("lockgate-tls-{}", uuid::Uuid::new_v4().simple());
        let certificates = Self(env::temp_dir().join(name));
        std::fs::create_dir(&certificates.0).expect("a place for temporary files");
        std::fs::write(certificates.path("names"), "subjectAltName=IP:127.0.0.1")
            .expect("a place for temporary files");
        for authority in ["ca", "other"] {
            let subject = format!("/CN={authority}");
            let words = ["req", "-x509", "-nodes", "-days", "2", "-subj", &subject, "-keyout"];
            let [key, cert] = [format!("{authority}.key"), format!("{authority}.crt")];
            certificates.openssl(&[&words[..], &[&key, "-out", &cert], &KEY].concat());
        }
        for (name, authority) in [("server", "ca"), ("client", "ca"), ("stranger", "other")] {
            certificates.vouch(name, authority);
        }
        certificates
    }

    fn vouch(&self, name: &str, authority: &str) {
        let [key, csr, cert] = ["key", "csr", "crt"].map(|kind| format!("{name}.{kind}"));
        let words = ["req", "-nodes", "-subj", "/CN=lockgate", "-keyout"];
        self.openssl(&[&words[..], &[&key, "-out", &csr], &KEY].concat());
        let [ca, ca_key] = ["crt", "key"].map(|kind| format!("{authority}.{kind}"));
        let words = ["x509", "-req", "-days", "2", "-CAcreateserial", "-extfile", "names"];
        self.openssl(
            &[&words[..], &["-in", &csr, "-CA", &ca, "-CAkey", &ca_key, "-out", &cert]].concat(),
        );
    }

    fn openssl(&self, words: &[&str]) {
        let mut command = Command::new("openssl");
        command.args(words).current_dir(&self.0).stdout(Stdio::null()).stderr(Stdio::null());
        assert!(command.status().expect("these tests need openssl").success(), "{words:?}");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// For a command line.
    fn words(&self) -> Vec<String> {
        let each = FILES.iter().map(|[setting, name]| {
            [format!("--{setting}"), self.path(name).to_str().expect("UTF-8").to_owned()]
        });
        each.flatten().collect()
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).expect("it was made")
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether the chosen server was built without TLS: `cargo xtask test` finds out and says so.
fn lacks_tls() -> bool {
    env::var_os("LOCKGATE_TESTS_WITHOUT_TLS").is_some()
}

struct TlsServer {
    child: Child,
    port: u16,
    certificates: Certificates,
}

impl TlsServer {
    async fn start(asks_for_certificates: bool) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let certificates = Certificates::make();
        let port = free_port();
        let child = spawn(port, &certificates, asks_for_certificates);
        let server = Self { child, port, certificates };
        let store = server.known().connect().await.expect("the settings are right");
        super::usable(&store).await;
        server
    }

    fn builder(&self) -> StoreBuilder {
        let url = format!("rediss://127.0.0.1:{}/?ns=test", self.port);
        Store::builder(&url).call_timeout(5 * SECOND)
    }

    /// Channels that somebody listens on for places in line.
    async fn listeners(&self) -> usize {
        let url = format!("rediss://127.0.0.1:{}/", self.port);
        let ca = Some(self.certificates.read("ca.crt"));
        let trust = redis::TlsCertificates { client_tls: None, root_cert: ca };
        let client = redis::Client::build_with_tls(url, trust).expect("an address");
        let mut connection = patient(&client).await.expect("it runs");
        let mut asked = redis::cmd("PUBSUB");
        asked.arg("CHANNELS").arg("lg:1:test:w:*");
        asked.query_async::<Vec<String>>(&mut connection).await.expect("it answers").len()
    }

    /// With the right authority, and a certificate that it vouches for.
    fn known(&self) -> StoreBuilder {
        let read = |name| self.certificates.read(name);
        self.builder()
            .ca_certificate(read("ca.crt"))
            .client_certificate(read("client.crt"), read("client.key"))
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(port: u16, certificates: &Certificates, asks_for_certificates: bool) -> Child {
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--tls-port", &port.to_string(), "--bind", "127.0.0.1"]);
    command.args(["--save", "", "--appendonly", "no"]).arg("--dir").arg(&certificates.0);
    command.args(certificates.words());
    command.args(["--tls-auth-clients", if asks_for_certificates { "yes" } else { "no" }]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("these tests need a redis-server that was built with TLS")
}

/// A server that refuses closes its socket, which may overtake what it says: then it looks away.
async fn mistake(builder: StoreBuilder) -> String {
    for _ in 0..20 {
        if let Err(error) = builder.clone().connect().await {
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            return error.to_string();
        }
    }
    panic!("it is no good, and nobody says why");
}

#[tokio::test]
async fn locks_and_messages_go_over_tls() {
    if lacks_tls() {
        return;
    }
    let server = TlsServer::start(false).await;
    let builder = server.builder().ca_certificate(server.certificates.read("ca.crt"));
    let store = builder.connect().await.expect("the settings are right");
    let held = store.lock("x").acquire().await.expect("it is free");
    let other = store.as_another_process();
    let waiter = crate::store::spawn(other.lock("x").wait(20 * SECOND).acquire());
    in_line(&store, 1).await;
    // Without messages it is served all the same, by its next look.
    eventually("a subscriber over TLS", async || server.listeners().await > 0).await;
    held.release().await;
    drop(waiter.await.expect("no panic").expect("it is served"));
}

#[tokio::test]
async fn who_is_not_trusted_is_told_of() {
    if lacks_tls() {
        return;
    }
    let server = TlsServer::start(false).await;
    let other = server.builder().ca_certificate(server.certificates.read("other.crt"));
    let text = mistake(other).await;
    assert!(text.contains("is not trusted"), "{text}");
    // The system knows nothing of this authority either.
    let text = mistake(server.builder()).await;
    assert!(text.contains("is not trusted"), "{text}");
    let text = mistake(server.builder().ca_certificate("no certificate")).await;
    assert!(text.contains("certificate"), "{text}");
}

#[tokio::test]
async fn a_server_may_ask_who_its_clients_are() {
    if lacks_tls() {
        return;
    }
    let server = TlsServer::start(true).await;
    let read = |name| server.certificates.read(name);
    let store = server.known().connect().await.expect("the settings are right");
    store.ping().await.expect("it is there");
    let silent = mistake(server.builder().ca_certificate(read("ca.crt"))).await;
    assert!(silent.contains("asks for a certificate"), "{silent}");
    let stranger = server
        .builder()
        .ca_certificate(read("ca.crt"))
        .client_certificate(read("stranger.crt"), read("stranger.key"));
    let text = mistake(stranger).await;
    assert!(text.contains("does not accept"), "{text}");
    let odd = server.builder().client_certificate(read("client.crt"), "no key");
    mistake(odd).await;
}

#[tokio::test]
async fn certificates_without_tls_are_a_mistake() {
    let text = mistake(Store::builder("redis://127.0.0.1/").ca_certificate("any")).await;
    assert!(text.contains("rediss://"), "{text}");
}

/// In a process of its own: in this one, other tests have chosen.
#[test]
fn without_a_crypto_provider_it_is_told_at_the_start() {
    const INSIDE: &str = "LOCKGATE_TEST_WITHOUT_PROVIDER";
    if env::var_os(INSIDE).is_none() {
        let name = std::thread::current().name().expect("a test has a name").to_owned();
        let mut again = Command::new(env::current_exe().expect("it runs"));
        let ended = again.args([&name, "--exact"]).env(INSIDE, "yes").output().expect("it runs");
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(ended.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let text = runtime.expect("a runtime").block_on(mistake(Store::builder("rediss://127.0.0.1/")));
    assert!(text.contains("crypto provider"), "{text}");
}
