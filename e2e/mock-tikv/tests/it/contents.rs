//! Looking at what is stored, and damaging it.

use crate::client::{get, put, start};

#[tokio::test]
async fn contents_are_the_newest_values_and_damage_shows_to_clients() {
    let (mock_tikv, client) = start().await;
    put(&client, &[("a", "1"), ("b", "2")]).await.unwrap();
    put(&client, &[("a", "3")]).await.unwrap();
    let before = mock_tikv.contents();
    let values: Vec<_> = before.iter().map(|(key, (_, value))| (&key[..], &value[..])).collect();
    assert_eq!(values, [(&b"a"[..], &b"3"[..]), (b"b", b"2")]);
    assert_eq!(mock_tikv.contents(), before);
    assert!(mock_tikv.damage(b"a", "rot").await.unwrap());
    assert!(!mock_tikv.damage(b"c", "rot").await.unwrap());
    assert_eq!(get(&client, "a").await.as_deref(), Some("rot"));
    assert_ne!(mock_tikv.contents(), before);
    put(&client, &[("b", "2")]).await.unwrap();
    assert_ne!(
        mock_tikv.contents()[&b"b"[..]],
        before[&b"b"[..]],
        "the same value, written again"
    );
}
