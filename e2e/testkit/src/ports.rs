//! Ports for servers of tests, each given to one test only.
//!
//! A server that is given a port binds it later, and again after each restart. Until then the port looks free, so every user reserves its
//! port first: with a socket that has an abstract name, which the kernel gives to one process of a network namespace and releases when
//! that process ends. `e2e/storage` does the same in Go.

use std::io;
use std::net::TcpListener;
use std::ops::Range;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

use rand::RngExt as _;

/// Below the ports that the kernel gives to outgoing connections, so that none of them takes a port while its server is down.
const PORT_RANGE: Range<u16> = 20_000..32_000;

/// Ports that are tried before the search fails.
const MAX_PORT_TRIES: usize = 10_000;

/// Sockets that hold the ports of this process.
static HELD_PORTS: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// Reserves a port on loopback that has no listener, for as long as this process lives.
///
/// # Errors
///
/// No port is free, or the kernel returned an error.
pub fn reserve() -> io::Result<u16> {
    reserve_in(PORT_RANGE)
}

fn reserve_in(ports: Range<u16>) -> io::Result<u16> {
    for _ in 0..MAX_PORT_TRIES {
        let port = rand::rng().random_range(ports.clone());
        let holder = match UnixListener::bind_addr(&name(port)?) {
            Ok(holder) => holder,
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => continue,
            Err(error) => return Err(error),
        };
        // a program that does not reserve its ports may listen
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            HELD_PORTS.lock().unwrap_or_else(PoisonError::into_inner).push(holder);
            return Ok(port);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AddrNotAvailable,
        format!("no port in {ports:?} is free"),
    ))
}

fn name(port: u16) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("kubebrain-test-port-{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_out_once() {
        let ports = 18_000..18_004;
        let other = UnixListener::bind_addr(&name(18_001).unwrap()).unwrap(); // as another process
        let server = TcpListener::bind(("127.0.0.1", 18_002)).unwrap();
        let mut given = [reserve_in(ports.clone()).unwrap(), reserve_in(ports.clone()).unwrap()];
        given.sort_unstable();
        assert_eq!(given, [18_000, 18_003]);
        assert_eq!(
            reserve_in(ports.clone()).unwrap_err().kind(),
            io::ErrorKind::AddrNotAvailable
        );
        drop((other, server));
        assert!([18_001, 18_002].contains(&reserve_in(ports).unwrap()));
    }
}
