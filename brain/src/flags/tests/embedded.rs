use super::*;

#[test]
fn embedded_brain_of_another_name_does_not_start() {
    assert!(ask("--name dev-0 --embedded-member dev-0", &[]).is_ok());
    let said = refused("--name dev-1 --embedded-member dev-0");
    assert!(
        said.starts_with("--embedded-member is \"dev-0\" and this member is \"dev-1\""),
        "{said}"
    );
    let by_variable = ask("--name dev-1", &[("ETCD_EMBEDDED_MEMBER", "dev-0")]);
    assert!(by_variable.is_err_and(|error| error.starts_with("ETCD_EMBEDDED_MEMBER is")));
}

#[test]
fn id_of_the_embedded_store_is_hexadecimal() {
    assert_eq!(
        serve("--embedded-cluster-id 00000000000000c1").0.embedded_cluster_id,
        Some(0xc1)
    );
    assert_eq!(serve("").0.embedded_cluster_id, None);
    for bad in ["xyz", "+1", "0x1", "10000000000000000"] {
        let said = refused(&format!("--embedded-cluster-id {bad}"));
        assert!(said.contains("is not up to 16 hexadecimal digits"), "{bad}: {said}");
    }
    for flag in ["--embedded-cluster-id c1", "--embedded-member default"] {
        let said = refused(&format!("--storage tikv --tikv-pd-endpoints pd:2379 {flag}"));
        assert!(said.ends_with("needs --storage embedded"), "{flag}: {said}");
    }
}

#[test]
fn check_is_asked_for_on_the_command_line_alone() {
    assert!(serve("--check").0.checks);
    let Ok(Asked::Serve(config, warnings)) = ask("", &[("ETCD_CHECK", "true")]) else {
        panic!("it serves")
    };
    assert!(!config.checks);
    assert_eq!(warnings, ["unrecognized environment variable ETCD_CHECK"]);
}
