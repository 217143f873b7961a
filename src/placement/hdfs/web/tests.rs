use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::super::tests::list;
use super::*;

const STANDBY: &str = r#"{"RemoteException":{"exception":"StandbyException","javaClassName":"org.apache.hadoop.ipc.StandbyException","message":"Operation category READ is not supported in state standby. Visit https://s.apache.org/sbnn-error"}}"#;
const NO_FILE: &str = r#"{"RemoteException":{"exception":"FileNotFoundException","javaClassName":"java.io.FileNotFoundException","message":"File does not exist: /data/f"}}"#;
const NO_OP: &str = r#"{"RemoteException":{"exception":"IllegalArgumentException","javaClassName":"java.lang.IllegalArgumentException","message":"Invalid value for webhdfs parameter \"op\": GETFILEBLOCKLOCATIONS is not a valid GET operation."}}"#;
const DENIED: &str = r#"{"RemoteException":{"exception":"AccessControlException","javaClassName":"org.apache.hadoop.security.AccessControlException","message":"Permission denied: user=x, access=READ, inode=\"/data/f\""}}"#;
const BLOCKS: &str = r#"{"BlockLocations":{"BlockLocation":[{"offset":0,"length":10,"corrupt":false,"hosts":["node1"],"names":["10.0.0.1:9866"]}]}}"#;
const LOCATED: &str = r#"{"LocatedBlocks":{"locatedBlocks":[{"block":{"numBytes":10},"isCorrupt":false,"locations":[{"hostName":"node2","name":"10.0.0.2:9866"}],"startOffset":0}]}}"#;
/// No request takes so long, however busy the machine is.
const LONG: Duration = Duration::from_secs(600);

/// A NameNode that answers every request with `answer` of the request's first line. It lives as
/// long as the test's process. The receiver gets the first lines.
fn serve(answer: impl Fn(&str) -> (u16, String) + Send + 'static) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (asked, asking) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = reply(stream, &asked, &answer);
        }
    });
    (url, asking)
}

fn reply(
    mut stream: TcpStream,
    asked: &Sender<String>,
    answer: &impl Fn(&str) -> (u16, String),
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend(byte);
    }
    let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
    let (status, body) = answer(&line);
    let _ = asked.send(line);
    let head = format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n");
    stream.write_all(format!("{head}Connection: close\r\n\r\n{body}").as_bytes())
}

/// A NameNode that accepts connections and never answers.
fn hang() -> (String, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    (format!("http://{}", listener.local_addr().unwrap()), listener)
}

/// The address of a port that no process listens on.
fn unreachable() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

fn settings(urls: &[&str], limit: Duration) -> WebHdfsSettings {
    let urls = urls.iter().map(|url| (*url).to_owned()).collect();
    WebHdfsSettings { urls, user: None, ca_file: None, root: "/data".to_owned(), timeout: limit }
}

fn web(urls: &[&str], limit: Duration) -> WebHdfs {
    WebHdfs::new(settings(urls, limit)).unwrap()
}

fn query(name: &[u8]) -> Query {
    Query {
        inode: 0,
        path: PathBuf::from(std::ffi::OsStr::from_bytes(name)),
        size: 10,
        replica: PathBuf::from("/mnt/a"),
    }
}

async fn nodes(web: &WebHdfs) -> Vec<String> {
    let map = web.locate(&query(b"f")).await.unwrap();
    list(&map)[0].2.iter().map(|node| (*node).to_owned()).collect()
}

async fn error(web: &WebHdfs) -> PlacementError {
    web.locate(&query(b"f")).await.unwrap_err()
}

#[tokio::test]
async fn the_active_name_node_is_remembered() {
    let (standby, at_standby) = serve(|_| (403, STANDBY.to_owned()));
    let (active, at_active) = serve(|_| (200, BLOCKS.to_owned()));
    let web = web(&[&unreachable(), &standby, &active], LONG);
    assert_eq!(nodes(&web).await, ["node1"]);
    assert_eq!(nodes(&web).await, ["node1"]);
    assert_eq!(at_standby.try_iter().count(), 1);
    let line = "GET /webhdfs/v1/data/f?op=GETFILEBLOCKLOCATIONS&offset=0&length=10 HTTP/1.1";
    assert_eq!(at_active.try_iter().collect::<Vec<_>>(), [line, line]);
}

#[tokio::test]
async fn if_no_name_node_answers_the_error_lists_all() {
    let (standby, _) = serve(|_| (403, STANDBY.to_owned()));
    let (denying, _) = serve(|_| (403, DENIED.to_owned()));
    let unreachable = unreachable();
    let said = error(&web(&[&standby, &denying, &unreachable], LONG)).await.to_string();
    assert!(said.contains(&format!("{standby}: HTTP status 403, StandbyException; ")), "{said}");
    assert!(said.contains(&format!("{denying}: HTTP status 403, AccessControlExc")), "{said}");
    assert!(said.contains(&format!("{unreachable}: ")) && said.contains("refused"), "{said}");
    assert!(!said.contains("/data") && !said.contains('\n'), "{said}");
    let said = error(&web(&[&standby], LONG)).await.to_string();
    assert_eq!(said, format!("{standby}: HTTP status 403, StandbyException"));
}

#[tokio::test]
async fn a_hung_name_node_costs_at_most_the_limit() {
    let (hanging, _listener) = hang();
    let limit = Duration::from_millis(300);
    let start = Instant::now();
    assert!(matches!(error(&web(&[&hanging], limit)).await, PlacementError::TimedOut(_)));
    assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
    // The hung NameNode's share is half; the other one answers in the rest.
    let (active, _) = serve(|_| (200, BLOCKS.to_owned()));
    assert_eq!(nodes(&web(&[&hanging, &active], Duration::from_secs(8))).await, ["node1"]);
}

#[tokio::test]
async fn a_stalled_name_node_answer_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"Block");
        std::thread::sleep(LONG);
    });
    let web = web(&[&url], Duration::from_millis(300));
    assert!(matches!(error(&web).await, PlacementError::TimedOut(_)));
}

#[tokio::test]
async fn an_old_name_node_gets_the_old_request() {
    for (status, refusal) in [(400, NO_OP), (404, "<html>"), (501, "")] {
        let (url, asked) = serve(move |line| match line.contains("op=GET_BLOCK_LOCATIONS&") {
            true => (200, LOCATED.to_owned()),
            false => (status, refusal.to_owned()),
        });
        let web = web(&[&url], LONG);
        assert_eq!(nodes(&web).await, ["node2"]);
        assert_eq!(nodes(&web).await, ["node2"]);
        // The new operation is tried once.
        assert_eq!(asked.try_iter().count(), 3);
    }
    let (url, _) = serve(|_| (501, String::new()));
    let said = error(&web(&[&url], LONG)).await.to_string();
    assert!(said.contains("it knows neither"), "{said}");
}

#[tokio::test]
async fn a_missing_file_is_requested_only_once() {
    let (first, _) = serve(|_| (404, NO_FILE.to_owned()));
    let (second, asked) = serve(|_| (200, BLOCKS.to_owned()));
    assert!(matches!(error(&web(&[&first, &second], LONG)).await, PlacementError::NotFound));
    assert_eq!(asked.try_iter().count(), 0);
}

#[tokio::test]
async fn invalid_web_answers_are_errors() {
    let (url, _) = serve(|_| (200, "<html>a captive portal</html>".to_owned()));
    assert!(matches!(error(&web(&[&url], LONG)).await, PlacementError::InvalidAnswer(_)));
    let (url, _) = serve(|_| (200, " ".repeat(MAX_RESPONSE_BYTES + 1)));
    assert!(matches!(error(&web(&[&url], LONG)).await, PlacementError::TooLong(_)));
    let (url, _) = serve(|_| (307, String::new()));
    let said = error(&web(&[&url], LONG)).await.to_string();
    assert_eq!(said, format!("{url}: HTTP status 307"));
    let evil = r#"{"RemoteException":{"exception":"a\u001b[2J/data/f"}}"#;
    let (url, _) = serve(|_| (500, evil.to_owned()));
    let said = error(&web(&[&url], LONG)).await.to_string();
    assert_eq!(said, format!("{url}: HTTP status 500, an exception without a name"));
}

#[tokio::test]
async fn file_names_are_passed_as_bytes() {
    let (url, asked) = serve(|_| (200, BLOCKS.to_owned()));
    let user = Some("a&b c".to_owned());
    let web = WebHdfs::new(WebHdfsSettings { user, ..settings(&[&url], LONG) }).unwrap();
    web.locate(&query(b"d/100% \xff?#&+;:\xc3\xa9~")).await.unwrap();
    let line = asked.recv().unwrap();
    let path = "/data/d/100%25%20%FF%3F%23%26%2B%3B%3A%C3%A9~";
    assert!(line.starts_with(&format!("GET /webhdfs/v1{path}?op=")), "{line}");
    assert!(line.ends_with("&length=10&user.name=a%26b%20c HTTP/1.1"), "{line}");
}

#[tokio::test]
async fn an_empty_file_needs_no_request() {
    let web = web(&[&unreachable()], LONG);
    let map = web.locate(&Query { size: 0, ..query(b"f") }).await.unwrap();
    assert!(map.is_empty());
    assert_eq!(web.name(), "hdfs");
}

#[test]
fn invalid_urls_are_refused() {
    let wrong = ["", "nn1:9870", "hdfs://nn1:8020", "http://", "http://u:p@nn1", "http://nn1/a"];
    for url in wrong.into_iter().chain(["http://nn1?a", "http://n n"]) {
        let said = WebHdfs::new(settings(&[url], LONG)).unwrap_err().to_string();
        assert!(said.contains("http://nn1:9870"), "{url}: {said}");
    }
    assert!(WebHdfs::new(settings(&[], LONG)).is_err());
    assert!(WebHdfs::new(settings(&["https://nn1:9871/", "http://[::1]:9870"], LONG)).is_ok());
}

#[test]
fn a_ca_file_without_a_certificate_is_refused() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("ca.pem");
    let new = || {
        let ca = Some(path.clone());
        WebHdfs::new(WebHdfsSettings { ca_file: ca, ..settings(&["https://nn1:9871"], LONG) })
    };
    assert!(new().unwrap_err().to_string().contains("No such file"));
    for pem in ["", "no certificate", "-----BEGIN CERTIFICATE-----\nQUJD\n"] {
        std::fs::write(&path, pem).unwrap();
        assert!(new().is_err(), "{pem}");
    }
    let pem = "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n";
    std::fs::write(&path, pem).unwrap();
    assert!(new().is_ok());
}
