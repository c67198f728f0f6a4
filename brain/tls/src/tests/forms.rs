//! Certificates as people make them with plain openssl, each with the answer of Go 1.26: of its `tls.Server` with
//! `RequireAndVerifyClientCert`, of its `tls.Client`, and of etcd's `NewCertPool`.

use std::process::Command;

use super::*;
use crate::dial::client;
use crate::verifier::observed;

/// A directory in which openssl makes certificates.
struct Forge(TempDir);

const SAN: &str = "subjectAltName=IP:127.0.0.1,DNS:localhost";

impl Forge {
    fn new() -> Forge {
        let forge = Forge(TempDir::new().unwrap());
        forge.ca("ca", "P-256", "basicConstraints=critical,CA:true");
        forge
    }

    fn openssl(&self, args: &str) {
        let output = Command::new("openssl")
            .current_dir(self.0.path())
            .args(args.split(' '))
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args}: {stderr}");
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.path().join(file)).unwrap()
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.0.path().join(file), text).unwrap();
    }

    /// Makes a key and a request to sign it. Kinds are sizes of RSA, and names of curves.
    fn request(&self, name: &str, kind: &str) {
        match kind {
            "ed25519" => self.openssl(&format!("genpkey -algorithm ed25519 -out {name}.key")),
            curve if curve.starts_with("P-") => {
                self.openssl(&format!(
                    "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:{curve} -out {name}.key"
                ));
            }
            bits => self.openssl(&format!("genrsa -out {name}.key {bits}")),
        }
        self.openssl(&format!("req -new -key {name}.key -subj /CN={name} -out {name}.csr"));
    }

    /// Signs a request. Without extensions the certificate is of version 1.
    fn sign(&self, name: &str, by: &str, extensions: &str, more: &str) {
        let mut command = format!("x509 -req -in {name}.csr -out {name}.crt -days 30{more}");
        command += &match by == name {
            true => format!(" -signkey {by}.key"),
            false => format!(" -CA {by}.crt -CAkey {by}.key -CAcreateserial"),
        };
        if !extensions.is_empty() {
            self.write("extensions", extensions);
            command += " -extfile extensions";
        }
        self.openssl(&command);
    }

    fn ca(&self, name: &str, kind: &str, extensions: &str) {
        self.request(name, kind);
        self.sign(name, name, extensions, "");
    }

    fn leaf(&self, name: &str, kind: &str, by: &str, extensions: &str) {
        self.request(name, kind);
        self.sign(name, by, extensions, "");
    }

    fn options(&self, pair: &str, ca: &str) -> TlsOptions {
        let path = |file: &str| self.0.path().join(file);
        TlsOptions {
            pair: Some((path(&format!("{pair}.crt")), path(&format!("{pair}.key")))),
            trusted_ca: Some(path(ca)),
            ..TlsOptions::default()
        }
    }

    /// Lets a client shake hands with a server, in each version of TLS. Returns the reason why one refuses the other, or nothing.
    async fn shake(&self, server: &TlsOptions, of_client: &TlsOptions, host: &str) -> [String; 2] {
        let server = ServerTls::load(server, &POLICY).unwrap();
        let mut answers = Vec::new();
        for version in [TlsVersion::Tls12, TlsVersion::Tls13] {
            let policy = TlsPolicy {
                min: version,
                max: version,
                cipher_suites: Vec::new(),
            };
            let client = Arc::new(client(of_client, &policy).unwrap());
            let (shaken, found) = observed(async { handshake(server.config(), &client, host) }).await;
            let refusal = shaken.map(|_| String::new()).unwrap_or_else(|error| error);
            answers.push(format!("{refusal}{}", found.refusal.unwrap_or_default()));
        }
        answers.try_into().unwrap()
    }
}

fn check(name: &str, answers: &[String; 2], refusal: Option<&str>) {
    for answer in answers {
        match refusal {
            None => assert_eq!(answer, "", "{name}"),
            Some(refusal) => assert!(answer.contains(refusal), "{name}: {answer:?}"),
        }
    }
}

/// Makes CAs that people trust, and returns the file with all of them.
fn trusted(forge: &Forge) -> &'static str {
    forge.ca("ca-v1", "P-256", "");
    forge.ca("ca-nobc", "P-256", "subjectKeyIdentifier=hash");
    forge.ca("ca-no", "P-256", "basicConstraints=CA:false");
    forge.ca(
        "ca-usage",
        "P-256",
        "basicConstraints=CA:true\nkeyUsage=digitalSignature",
    );
    forge.ca("ca-p521", "P-521", "basicConstraints=CA:true");
    forge.ca("ca-rsa", "2048", "basicConstraints=CA:true");
    forge.ca("ca-short", "1024", "basicConstraints=CA:true");
    forge.ca("ca-names", "P-256", "basicConstraints=CA:true\nnameConstraints=permitted;DNS:example,excluded;DNS:x.example,permitted;IP:10.0.0.0/255.0.0.0");
    forge.ca(
        "ca-rid",
        "P-256",
        "basicConstraints=CA:true\nnameConstraints=critical,permitted;RID:1.2.3.4",
    );
    forge.ca(
        "ca-rid-only",
        "P-256",
        "basicConstraints=CA:true\nnameConstraints=permitted;RID:1.2.3.4",
    );
    forge.ca("self", "P-256", "basicConstraints=CA:true");
    forge.ca("self-v1", "P-256", "");
    let names = [
        "ca",
        "ca-v1",
        "ca-nobc",
        "ca-no",
        "ca-usage",
        "ca-p521",
        "ca-rsa",
        "ca-short",
        "ca-names",
        "ca-rid",
        "ca-rid-only",
        "self",
        "self-v1",
    ];
    let all: String = names.map(|name| forge.read(&format!("{name}.crt"))).concat();
    forge.write("roots.crt", &all);
    "roots.crt"
}

/// A client's certificate: its name, the kind of its key, its CA, its extensions; and the reason why it is refused.
type Row<'a> = (&'a str, &'a str, &'a str, &'a str, Option<&'a str>);

/// Lets a server with these CAs judge certificates of clients.
async fn shake_all(forge: &Forge, roots: &str, rows: &[Row<'_>]) {
    forge.leaf("server", "P-256", "ca", SAN);
    let server = forge.options("server", roots);
    for (name, kind, by, extensions, refusal) in rows {
        forge.leaf(name, kind, by, extensions);
        let answers = forge.shake(&server, &forge.options(name, "ca.crt"), "localhost").await;
        check(name, &answers, *refusal);
    }
}

#[tokio::test]
async fn names_of_clients_are_constrained_as_by_go() {
    let forge = Forge::new();
    let roots = trusted(&forge);
    let client = "extendedKeyUsage=clientAuth";
    let rows = [
        (
            "names",
            "P-256",
            "ca-names",
            "subjectAltName=DNS:a.example,IP:10.1.1.1",
            None,
        ),
        ("no-names", "P-256", "ca-names", client, None),
        (
            "other-kind",
            "P-256",
            "ca-rid",
            client,
            Some("CN=ca-rid has a critical extension that is not understood"),
        ),
        ("other-kind-uncritical", "P-256", "ca-rid-only", client, None),
        (
            "excluded",
            "P-256",
            "ca-names",
            "subjectAltName=DNS:a.x.example",
            Some("excluded by DNSName(x.example)"),
        ),
        (
            "wildcard",
            "P-256",
            "ca-names",
            "subjectAltName=DNS:*.example",
            Some("excluded by DNSName(x.example)"),
        ),
        (
            "not-permitted",
            "P-256",
            "ca-names",
            "subjectAltName=DNS:other",
            Some("DNSName(other) is not permitted"),
        ),
        (
            "other-network",
            "P-256",
            "ca-names",
            "subjectAltName=IP:11.0.0.1",
            Some("is not permitted"),
        ),
    ];
    shake_all(&forge, roots, &rows).await;
}

#[tokio::test]
async fn clients_are_accepted_as_by_go() {
    let forge = Forge::new();
    let roots = trusted(&forge);
    let client = "extendedKeyUsage=clientAuth";
    let unknown = Some("is not among the trusted CAs");
    let rows = [
        ("version-1", "P-256", "ca", "", None),
        ("no-usage", "P-256", "ca", "subjectAltName=DNS:x", None),
        ("any-usage", "P-256", "ca", "extendedKeyUsage=anyExtendedKeyUsage", None),
        (
            "both-usages",
            "P-256",
            "ca",
            "extendedKeyUsage=serverAuth,clientAuth",
            None,
        ),
        (
            "server-usage",
            "P-256",
            "ca",
            "extendedKeyUsage=serverAuth",
            Some("extended key usages of CN=server-usage"),
        ),
        (
            "other-usage",
            "P-256",
            "ca",
            "extendedKeyUsage=1.2.3.4",
            Some("extended key usages of CN=other-usage"),
        ),
        (
            "is-ca",
            "P-256",
            "ca",
            "basicConstraints=CA:true\nextendedKeyUsage=clientAuth",
            None,
        ),
        (
            "other-address",
            "P-256",
            "ca",
            "subjectAltName=IP:10.99.99.99\nextendedKeyUsage=clientAuth",
            None,
        ),
        (
            "odd-extension",
            "P-256",
            "ca",
            "1.2.3.4=critical,DER:0500",
            Some("critical extension that is not understood"),
        ),
        ("unread-extension", "P-256", "ca", "1.2.3.4=DER:0500", None),
        ("p384", "P-384", "ca", client, None),
        ("p521", "P-521", "ca", client, None),
        ("ed25519", "ed25519", "ca", client, None),
        ("rsa-2048", "2048", "ca", client, None),
        ("rsa-1024", "1024", "ca", client, None),
        ("of-v1", "P-256", "ca-v1", client, None),
        ("of-p521", "P-256", "ca-p521", client, None),
        ("of-rsa", "P-256", "ca-rsa", client, None),
        ("of-short", "P-256", "ca-short", client, None),
        (
            "of-nobc",
            "P-256",
            "ca-nobc",
            client,
            Some("CN=ca-nobc has no basicConstraints"),
        ),
        (
            "of-no",
            "P-256",
            "ca-no",
            client,
            Some("according to its basicConstraints CN=ca-no is not a CA"),
        ),
        (
            "of-usage",
            "P-256",
            "ca-usage",
            client,
            Some("key usages of CN=ca-usage"),
        ),
    ];
    shake_all(&forge, roots, &rows).await;
    let server = forge.options("server", roots);
    // A certificate that is itself trusted needs no CA.
    for name in ["self", "self-v1", "ca-nobc", "ca-no", "ca-usage"] {
        let answers = forge.shake(&server, &forge.options(name, "ca.crt"), "localhost").await;
        check(name, &answers, None);
    }
    // It has the name and key of a trusted certificate, but is another one.
    forge.sign("self", "self", "basicConstraints=CA:true", " -set_serial 7");
    let answers = forge
        .shake(&server, &forge.options("self", "ca.crt"), "localhost")
        .await;
    check("self again", &answers, unknown);
}

/// A network without a mask, with one that is none, constraints without a constraint, and with a part that is none.
#[test]
fn constraints_that_cannot_be_read_are_refused() {
    let forge = Forge::new();
    forge.leaf("server", "P-256", "ca", SAN);
    for (name, constraints) in [
        ("short", "300aa008300687040a000000"),
        ("holes", "300ea00c300a87080a000000ff00ff00"),
        ("empty", "3000"),
        ("part", "3010a00730058203612e62a105300387010a"),
    ] {
        let extensions = format!("basicConstraints=CA:true\n2.5.29.30=DER:{constraints}");
        forge.ca(name, "P-256", &extensions);
        let error = ServerTls::load(&forge.options("server", &format!("{name}.crt")), &POLICY).unwrap_err();
        assert!(
            error.to_string().contains("malformed: its extension 2.5.29.30"),
            "{name}: {error}"
        );
    }
    let extensions = "basicConstraints=CA:true\n2.5.29.30=DER:300ea00c300a87080a000000fff00000";
    forge.ca("good", "P-256", extensions);
    ServerTls::load(&forge.options("server", "good.crt"), &POLICY).unwrap();
}

/// Chains, whose order does not matter, and what may be missing in them.
#[tokio::test]
async fn chains_of_clients_are_found_as_by_go() {
    let forge = Forge::new();
    forge.leaf("server", "P-256", "ca", SAN);
    let intermediate = "basicConstraints=critical,CA:true\nkeyUsage=keyCertSign";
    forge.leaf("one", "P-256", "ca", intermediate);
    forge.leaf("two", "P-256", "one", intermediate);
    forge.leaf("last", "P-256", "ca", "basicConstraints=CA:true,pathlen:0");
    forge.leaf("below", "P-256", "last", intermediate);
    forge.leaf("v1", "P-256", "ca", "");
    forge.leaf(
        "codes",
        "P-256",
        "ca",
        "basicConstraints=CA:true\nextendedKeyUsage=codeSigning",
    );
    let server = forge.options("server", "ca.crt");
    for (by, sent, refusal) in [
        ("ca", &[][..], None),
        ("ca", &["v1", "two"][..], None),
        (
            "one",
            &[][..],
            Some("is signed by CN=one, which is not among the trusted CAs"),
        ),
        ("one", &["one"][..], None),
        ("one", &["ca", "one"][..], None),
        ("two", &["two", "one"][..], None),
        ("two", &["one", "two"][..], None),
        ("two", &["v1", "one", "ca", "two", "one"][..], None),
        (
            "two",
            &["two"][..],
            Some("is signed by CN=two, which is not among the trusted CAs"),
        ),
        ("last", &["last"][..], None),
        ("below", &["below", "last"][..], Some("more CAs follow CN=last")),
        ("v1", &["v1"][..], Some("CN=v1 is not marked as a CA")),
        ("codes", &["codes"][..], Some("extended key usages")),
    ] {
        forge.leaf("leaf", "P-256", by, "extendedKeyUsage=clientAuth");
        let chain: String = sent.iter().map(|name| forge.read(&format!("{name}.crt"))).collect();
        forge.write("leaf.crt", &(forge.read("leaf.crt") + &chain));
        let answers = forge
            .shake(&server, &forge.options("leaf", "ca.crt"), "localhost")
            .await;
        check(&format!("{by}: {sent:?}"), &answers, refusal);
    }
}

#[tokio::test]
async fn servers_load_and_are_accepted_as_by_go() {
    let forge = Forge::new();
    let none = Some("is not one of");
    for (name, kind, extensions, host, refusal) in [
        ("plain", "P-256", SAN, "localhost", None),
        ("address", "P-256", SAN, "127.0.0.1", None),
        ("rsa-2048", "2048", SAN, "localhost", None),
        ("rsa-1024", "1024", SAN, "localhost", None),
        ("p521", "P-521", SAN, "localhost", None),
        ("ed25519", "ed25519", SAN, "localhost", None),
        (
            "any",
            "P-256",
            "subjectAltName=DNS:localhost\nextendedKeyUsage=anyExtendedKeyUsage",
            "localhost",
            None,
        ),
        (
            "client-usage",
            "P-256",
            "subjectAltName=DNS:localhost\nextendedKeyUsage=clientAuth",
            "localhost",
            Some("as that of a server"),
        ),
        // The common name is no name of a host.
        ("localhost", "P-256", "", "localhost", none),
        ("common", "P-256", "subjectAltName=DNS:x", "common", none),
        ("wildcard", "P-256", "subjectAltName=DNS:*.example", "a.example", None),
        (
            "wildcard-2",
            "P-256",
            "subjectAltName=DNS:*.example",
            "a.b.example",
            none,
        ),
        (
            "wildcard-3",
            "P-256",
            "subjectAltName=DNS:a*.example",
            "ab.example",
            none,
        ),
        ("case", "P-256", "subjectAltName=DNS:A.Example", "a.example", None),
        (
            "underscore",
            "P-256",
            "subjectAltName=DNS:my_etcd.example",
            "my_etcd.example",
            None,
        ),
        ("v6", "P-256", "subjectAltName=IP:::1", "::1", None),
        (
            "dns-address",
            "P-256",
            "subjectAltName=DNS:127.0.0.1",
            "127.0.0.1",
            none,
        ),
    ] {
        forge.leaf(name, kind, "ca", extensions);
        let one_way = TlsOptions {
            trusted_ca: None,
            ..forge.options(name, "ca.crt")
        };
        let of_client = TlsOptions {
            pair: None,
            ..forge.options(name, "ca.crt")
        };
        let answers = forge.shake(&one_way, &of_client, host).await;
        check(name, &answers, refusal);
    }
}

/// etcd starts with no CA at all, by a file that is empty or begins with a byte order mark, and then refuses all clients; here that is
/// said at start. It does not start with a key among the CAs; that does no harm here.
#[test]
fn files_load_in_the_forms_that_go_reads() {
    let forge = Forge::new();
    forge.leaf("server", "P-256", "ca", SAN);
    let (ca, key) = (forge.read("ca.crt"), forge.read("ca.key"));
    let labelled = ca.replace(" CERTIFICATE", " TRUSTED CERTIFICATE");
    let broken = "-----BEGIN CERTIFICATE-----\nA!AA\n-----END CERTIFICATE-----\n";
    let malformed = broken.replace('!', "A");
    for (form, roots, loads) in [
        ("plain", ca.clone(), true),
        ("CRLF", ca.replace('\n', "\r\n"), true),
        ("text around", format!("# our CA\n\n{ca}trailing words\n"), true),
        ("twice", format!("{ca}{ca}"), true),
        ("another label", labelled, true),
        ("skipped", format!("{broken}{ca}"), true),
        ("malformed", format!("{malformed}{ca}"), false),
        ("a key", format!("{key}{ca}"), true),
        ("empty", String::new(), false),
        ("byte order mark", format!("\u{feff}{ca}"), false),
    ] {
        forge.write("form.crt", &roots);
        assert_eq!(
            ServerTls::load(&forge.options("server", "form.crt"), &POLICY).is_ok(),
            loads,
            "{form}"
        );
    }
    let (cert, key) = (forge.read("server.crt"), forge.read("server.key"));
    forge.openssl("ec -in server.key -out sec1.key");
    forge.openssl("ecparam -name prime256v1 -out parameters");
    let (sec1, parameters) = (forge.read("sec1.key"), forge.read("parameters"));
    assert!(sec1.contains("EC PRIVATE KEY") && parameters.contains("EC PARAMETERS"));
    for (form, cert, key, loads) in [
        ("plain", cert.clone(), key.clone(), true),
        ("CRLF", cert.replace('\n', "\r\n"), key.replace('\n', "\r\n"), true),
        ("in one file", format!("{key}{cert}"), format!("{cert}{key}"), true),
        ("SEC1", cert.clone(), sec1.clone(), true),
        ("parameters first", cert.clone(), format!("{parameters}{sec1}"), true),
        (
            "another label",
            cert.clone(),
            sec1.replace("EC PRIVATE", "PRIVATE"),
            true,
        ),
        (
            "another label",
            cert.clone(),
            key.replace(" PRIVATE", " RSA PRIVATE"),
            true,
        ),
        (
            "no label of a key",
            cert.clone(),
            key.replace("PRIVATE KEY", "SECRET"),
            false,
        ),
        ("the CA first", format!("{ca}{cert}"), key.clone(), false),
        ("the CA last", format!("{cert}{ca}"), key.clone(), true),
        (
            "another label",
            cert.replace(" CERTIFICATE", " TRUSTED CERTIFICATE"),
            key.clone(),
            false,
        ),
    ] {
        forge.write("form.crt", &cert);
        forge.write("form.key", &key);
        assert_eq!(
            ServerTls::load(&forge.options("form", "ca.crt"), &POLICY).is_ok(),
            loads,
            "{form}"
        );
    }
}

/// Go loads it, and then refuses every handshake of TLS 1.3.
#[test]
fn key_of_another_curve_is_named() {
    let forge = Forge::new();
    forge.leaf("server", "P-224", "ca", SAN);
    let refusal = refused(&forge.options("server", "ca.crt"));
    assert!(
        refusal.contains("server.key") && refusal.contains("P-256, P-384 or P-521"),
        "{refusal}"
    );
}
