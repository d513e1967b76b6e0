//! TLS connections to a server, and errors of settings that do not fit it.

mod multiple_servers;

use std::{
    env,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use super::{
    SECOND,
    server_process::{connect_with_long_timeout, free_port},
    wait_for_queue_length, wait_until,
};
use crate::{
    error::ErrorKind,
    store::{Store, StoreBuilder},
};

/// Directory of certificates, issued by a trusted authority and by another one.
struct TestCertificates(PathBuf);

/// Settings of a server's certificate files.
const SERVER_FILE_SETTINGS: [[&str; 2]; 3] = [
    ["tls-cert-file", "server.crt"],
    ["tls-key-file", "server.key"],
    ["tls-ca-cert-file", "ca.crt"],
];

/// Elliptic curve keys are generated faster than RSA keys.
const KEY_OPTIONS: [&str; 4] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];

impl TestCertificates {
    fn generate() -> Self {
        let name = format!("lockgate-tls-{}", uuid::Uuid::new_v4().simple());
        let certificates = Self(env::temp_dir().join(name));
        std::fs::create_dir(&certificates.0).expect("the temporary directory is writable");
        std::fs::write(certificates.path("names"), "subjectAltName=IP:127.0.0.1")
            .expect("the temporary directory is writable");
        for authority in ["ca", "other"] {
            let subject = format!("/CN={authority}");
            let args = ["req", "-x509", "-nodes", "-days", "2", "-subj", &subject, "-keyout"];
            let [key, cert] = [format!("{authority}.key"), format!("{authority}.crt")];
            certificates.run_openssl(&[&args[..], &[&key, "-out", &cert], &KEY_OPTIONS].concat());
        }
        for (name, authority) in [("server", "ca"), ("client", "ca"), ("stranger", "other")] {
            certificates.issue(name, authority);
        }
        certificates
    }

    fn issue(&self, name: &str, authority: &str) {
        let [key, csr, cert] = ["key", "csr", "crt"].map(|kind| format!("{name}.{kind}"));
        let args = ["req", "-nodes", "-subj", "/CN=lockgate", "-keyout"];
        self.run_openssl(&[&args[..], &[&key, "-out", &csr], &KEY_OPTIONS].concat());
        let [ca, ca_key] = ["crt", "key"].map(|kind| format!("{authority}.{kind}"));
        let args = ["x509", "-req", "-days", "2", "-CAcreateserial", "-extfile", "names"];
        self.run_openssl(
            &[&args[..], &["-in", &csr, "-CA", &ca, "-CAkey", &ca_key, "-out", &cert]].concat(),
        );
    }

    fn run_openssl(&self, args: &[&str]) {
        let mut command = Command::new("openssl");
        command.args(args).current_dir(&self.0).stdout(Stdio::null()).stderr(Stdio::null());
        assert!(command.status().expect("these tests need openssl").success(), "{args:?}");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the settings as command line arguments.
    fn server_arguments(&self) -> Vec<String> {
        let each = SERVER_FILE_SETTINGS.iter().map(|[setting, name]| {
            [format!("--{setting}"), self.path(name).to_str().expect("UTF-8").to_owned()]
        });
        each.flatten().collect()
    }

    fn read_file(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).expect("it was made")
    }
}

impl Drop for TestCertificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns true if the tests' server was built without TLS, which `cargo xtask test` detects.
fn server_lacks_tls() -> bool {
    env::var_os("LOCKGATE_TESTS_WITHOUT_TLS").is_some()
}

struct TlsServer {
    child: Child,
    port: u16,
    certificates: TestCertificates,
}

impl TlsServer {
    async fn start(requires_certificates: bool) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let certificates = TestCertificates::generate();
        let port = free_port();
        let child = spawn_tls_server(port, &certificates, requires_certificates);
        let server = Self { child, port, certificates };
        let store =
            server.builder_with_certificates().connect().await.expect("the settings are right");
        super::wait_until_usable(&store).await;
        server
    }

    fn builder(&self) -> StoreBuilder {
        let url = format!("rediss://127.0.0.1:{}/?ns=test", self.port);
        Store::builder(&url).call_timeout(5 * SECOND)
    }

    /// Returns the number of channels on which waiters are subscribed.
    async fn lock_channel_count(&self) -> usize {
        let url = format!("rediss://127.0.0.1:{}/", self.port);
        let ca = Some(self.certificates.read_file("ca.crt"));
        let trust = redis::TlsCertificates { client_tls: None, root_cert: ca };
        let client = redis::Client::build_with_tls(url, trust).expect("an address");
        let mut connection = connect_with_long_timeout(&client).await.expect("it runs");
        let mut command = redis::cmd("PUBSUB");
        command.arg("CHANNELS").arg("lg:1:test:w:*");
        command.query_async::<Vec<String>>(&mut connection).await.expect("it answers").len()
    }

    /// Builder with the right authority, and a client certificate that it issued.
    fn builder_with_certificates(&self) -> StoreBuilder {
        let read = |name| self.certificates.read_file(name);
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

fn spawn_tls_server(
    port: u16,
    certificates: &TestCertificates,
    requires_certificates: bool,
) -> Child {
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--tls-port", &port.to_string(), "--bind", "127.0.0.1"]);
    command.args(["--save", "", "--appendonly", "no"]).arg("--dir").arg(&certificates.0);
    command.args(certificates.server_arguments());
    command.args(["--tls-auth-clients", if requires_certificates { "yes" } else { "no" }]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("these tests need a redis-server that was built with TLS")
}

/// Returns the text of a config error. A server that refuses closes its socket, which may overtake
/// the alert. That looks like an outage, so the connect is repeated.
async fn config_error_text(builder: StoreBuilder) -> String {
    for _ in 0..20 {
        if let Err(error) = builder.clone().connect().await {
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            return error.to_string();
        }
    }
    panic!("the connect fails without a config error");
}

#[tokio::test]
async fn locks_and_wakeups_work_over_tls() {
    if server_lacks_tls() {
        return;
    }
    let server = TlsServer::start(false).await;
    let builder = server.builder().ca_certificate(server.certificates.read_file("ca.crt"));
    let store = builder.connect().await.expect("the settings are right");
    let held = store.lock("x").acquire().await.expect("it is free");
    let other = store.as_another_process();
    let waiter = crate::store::spawn(other.lock("x").wait(20 * SECOND).acquire());
    wait_for_queue_length(&store, 1).await;
    // Without wake-ups, the next poll would serve the waiter.
    wait_until("a subscriber over TLS", async || server.lock_channel_count().await > 0).await;
    held.release().await;
    drop(waiter.await.expect("no panic").expect("it is served"));
}

#[tokio::test]
async fn untrusted_server_certificate_is_config_error() {
    if server_lacks_tls() {
        return;
    }
    let server = TlsServer::start(false).await;
    let other = server.builder().ca_certificate(server.certificates.read_file("other.crt"));
    let text = config_error_text(other).await;
    assert!(text.contains("is not trusted"), "{text}");
    // The system does not know this authority either.
    let text = config_error_text(server.builder()).await;
    assert!(text.contains("is not trusted"), "{text}");
    let text = config_error_text(server.builder().ca_certificate("no certificate")).await;
    assert!(text.contains("certificate"), "{text}");
}

#[tokio::test]
async fn server_may_require_client_certificate() {
    if server_lacks_tls() {
        return;
    }
    let server = TlsServer::start(true).await;
    let read = |name| server.certificates.read_file(name);
    let store = server.builder_with_certificates().connect().await.expect("the settings are right");
    store.ping().await.expect("it is there");
    let text_without_certificate =
        config_error_text(server.builder().ca_certificate(read("ca.crt"))).await;
    assert!(
        text_without_certificate.contains("requires a client certificate"),
        "{text_without_certificate}"
    );
    let untrusted = server
        .builder()
        .ca_certificate(read("ca.crt"))
        .client_certificate(read("stranger.crt"), read("stranger.key"));
    let text = config_error_text(untrusted).await;
    assert!(text.contains("rejected the client certificate"), "{text}");
    let invalid = server.builder().client_certificate(read("client.crt"), "no key");
    config_error_text(invalid).await;
}

#[tokio::test]
async fn certificates_without_tls_are_config_error() {
    let text = config_error_text(Store::builder("redis://127.0.0.1/").ca_certificate("any")).await;
    assert!(text.contains("rediss://"), "{text}");
}

/// In a process of its own, since other tests install a provider in this one.
#[test]
fn missing_crypto_provider_fails_at_connect() {
    const INSIDE: &str = "LOCKGATE_TEST_WITHOUT_PROVIDER";
    if env::var_os(INSIDE).is_none() {
        let name = std::thread::current().name().expect("a test has a name").to_owned();
        let mut command = Command::new(env::current_exe().expect("it runs"));
        let output = command.args([&name, "--exact"]).env(INSIDE, "yes").output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let text = runtime
        .expect("a runtime")
        .block_on(config_error_text(Store::builder("rediss://127.0.0.1/")));
    assert!(text.contains("crypto provider"), "{text}");
}
