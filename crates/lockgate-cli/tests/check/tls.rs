//! A store over TLS, with an authority from the environment.

use std::{
    env, fs,
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Instant,
};

use super::{TEST_TIMEOUT, run_program};

/// Server with the directory of its certificates.
struct TlsRedisServer {
    process: Child,
    directory: PathBuf,
}

impl Drop for TlsRedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Commands that create an authority `ca` and a server certificate that it signs.
const CERTIFICATE_COMMANDS: [&str; 3] = [
    "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ca -keyout ca.key -out ca.crt",
    "req -newkey rsa:2048 -nodes -subj /CN=lockgate -keyout server.key -out server.csr",
    "x509 -req -days 2 -CAcreateserial -extfile names -in server.csr -CA ca.crt -CAkey ca.key -out server.crt",
];

fn start_tls_server() -> (TlsRedisServer, u16) {
    let directory = env::temp_dir().join(format!("lockgate-fsck-{}", std::process::id()));
    fs::create_dir(&directory).expect("a directory for temporary files");
    fs::write(directory.join("names"), "subjectAltName=IP:127.0.0.1")
        .expect("it can be written to");
    for step in CERTIFICATE_COMMANDS {
        let mut openssl = Command::new("openssl");
        openssl.args(step.split(' ')).current_dir(&directory).stderr(Stdio::null());
        assert!(openssl.status().expect("these tests need openssl").success(), "{step}");
    }
    let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let port = free.expect("a free port").port();
    let args = format!(
        "--port 0 --tls-port {port} --bind 127.0.0.1 --save  --tls-auth-clients no \
         --tls-cert-file server.crt --tls-key-file server.key --tls-ca-cert-file ca.crt"
    );
    let mut server = Command::new("redis-server");
    server.args(args.split(' ')).current_dir(&directory).stdout(Stdio::null());
    let process = server.spawn().expect("these tests need a redis-server that was built with TLS");
    (TlsRedisServer { process, directory }, port)
}

#[test]
fn tls_store_is_checked_with_authority_from_environment() {
    // The tests run with a server that was built without TLS.
    if env::var_os("LOCKGATE_TESTS_WITHOUT_TLS").is_some() {
        return;
    }
    let (server, port) = start_tls_server();
    let url = format!("rediss://127.0.0.1:{port}/?ns=shop");
    let fsck = |authority: Option<PathBuf>| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_lockgate"));
        program.env_remove("LOCKGATE_STORE").env_remove("SSL_CERT_DIR").env_remove("SSL_CERT_FILE");
        program.envs(authority.map(|path| ("SSL_CERT_FILE", path)));
        run_program(program, &[&url])
    };
    let started = Instant::now();
    let (code, text) = loop {
        let result = fsck(Some(server.directory.join("ca.crt")));
        if result.0 != Some(2) || started.elapsed() > TEST_TIMEOUT {
            break result;
        }
    };
    assert_eq!(code, Some(3), "the check ran, and the namespace is empty: {text}");

    let (code, text) = fsck(None);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("is not trusted"), "{text}");
}
