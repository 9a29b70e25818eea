"""A hundred and more ways in which a secret stands in what a bundle packs, and what of the same text must stay.

Tokens are put together here, so that no whole one stands in the repository.
"""

from __future__ import annotations

import base64
import json
from typing import NamedTuple
from urllib.parse import quote

PLAIN = "hunter2" + "Hunter2-xQ"  # a password a person chose
ODD = "pa55,w;rd)&x"  # with letters a shell or a list would end at
HEX = "9f8e7d6c5b4a39281706f5e4d3c2b1a0"  # like a request id: only its name tells
BASE = "q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRW"  # 40 characters of base64, as an AWS secret key
LETTERS = "Zx81kQw7Lm20PvRt65YnBc39HsJd"
HF = "hf" + "_" + LETTERS
OPENAI = "sk" + "-proj-" + LETTERS
JWT = "eyJhbGciOiJIUzI1NiJ9" + "." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0" + "." + "dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
AWS_ID = "AKIA" + "QYLPMN5HFIQR7XYA"
USERS = base64.b64encode(b"alice:" + PLAIN.encode()).decode()
BODY = "\n".join("MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj" + str(line) for line in range(3))
PEM = "-----BEGIN " + f"PRIVATE KEY-----\n{BODY}\n-----END " + "PRIVATE KEY-----"
WRAPPED = "\n".join(JWT[at : at + 64] for at in range(0, len(JWT), 64))


class SecretForm(NamedTuple):
    """`text` of a file: nothing of `secrets` may come out, every one of `kept` must."""

    name: str
    text: str
    secrets: tuple[str, ...]
    kept: tuple[str, ...] = ()


def _one(name: str, text: str, secret: str, *kept: str) -> SecretForm:
    return SecretForm(name, text, (secret,), kept)


COMMAND_LINES = (
    _one("flag and value", f"python -m sglang.launch_server --api-key {PLAIN} --port 30000", PLAIN, "--port 30000"),
    _one("flag=value", f"--api-key={PLAIN} --tp 4", PLAIN, "--tp 4"),
    _one("quoted flag value", f"--api-key '{ODD}' --tp 4", ODD, "--tp 4"),
    _one("odd letters, unquoted", f'--admin-api-key "{ODD}" --port 1', ODD, "--port 1"),
    _one("argv list of Python", f"['--api-key', '{PLAIN}', '--port', '30000']", PLAIN, "'30000'"),
    _one("argv of JSON", json.dumps(["--hf-token", PLAIN, "--tp", "4"]), PLAIN, '"--tp"'),
    _one("argv of JSON over lines", json.dumps(["--api-key", HEX, "--tp"], indent=1), HEX, '"--tp"'),
    _one("argv of YAML", f"args:\n  - --api-key\n  - {PLAIN}\n  - --port\n  - '30000'\n", PLAIN, "'30000'"),
    _one("argv of YAML, joined", f"args:\n  - --api-key={PLAIN}\n  - --port=30000\n", PLAIN, "--port=30000"),
    _one("continued line", f"sglang --api-key \\\n    {PLAIN} \\\n    --port 30000\n", PLAIN, "--port 30000"),
    _one("variable before a command", f"HF_TOKEN={PLAIN} python -m sglang.launch_server --tp 4", PLAIN, "--tp 4"),
    _one("export", f"export WANDB_API_KEY={HEX}\necho --tp 4\n", HEX, "--tp 4"),
    _one("export, quoted", f'export DB_PASSWORD="{ODD}"\n', ODD),
    _one("setenv", f"setenv OPENAI_API_KEY {PLAIN}\n", PLAIN),
    _one("PowerShell", f'$env:HF_TOKEN = "{PLAIN}"\n', PLAIN),
    _one("Dockerfile ENV", f"ENV HF_TOKEN {PLAIN}\nENV TP=4\n", PLAIN, "TP=4"),
    _one("Dockerfile ARG", f"ARG API_KEY={PLAIN}\n", PLAIN),
    _one("docker -e", f"docker run -e HF_TOKEN={PLAIN} -p 30000:30000 lmsysorg/sglang:v0.5.8", PLAIN, "sglang:v0.5.8"),
    _one("curl header", f"curl -H 'Authorization: Bearer {PLAIN}' http://10.0.0.1:30000/v1", PLAIN, "10.0.0.1:30000"),
    _one("curl x-api-key", f'curl -H "X-API-Key: {HEX}" http://10.0.0.1:30000/v1', HEX, "http://10.0.0.1:30000/v1"),
    _one("curl -u", f"curl -u alice:{PLAIN} http://10.0.0.1:8000/workers", PLAIN, "http://10.0.0.1:8000/workers"),
    _one("curl cookie", f'curl -b "x" -H "Cookie: sid={HEX}; csrf={PLAIN}" http://10.0.0.1/', HEX, "10.0.0.1"),
    _one("sshpass", f"sshpass -p {PLAIN} ssh node-7", PLAIN, "ssh node-7"),
    _one("docker login", f"docker login -u bot -p {PLAIN} registry.local:5000", PLAIN, "registry.local:5000"),
    _one("kubectl literal", f"kubectl create secret generic hf --from-literal=token={PLAIN}", PLAIN),
    _one("--set", f"pdctl launch 2p1d --set router.api-key={PLAIN} --set router.port=8100", PLAIN, "router.port=8100"),
    _one("xtrace", f"+ exec python -m sglang.launch_server --api-key {PLAIN} --port 1", PLAIN, "--port 1"),
)
SETTINGS = (
    _one("ServerArgs", f"ServerArgs(api_key='{HEX}', tp_size=4, page_size=64)", HEX, "page_size=64"),
    _one("admin key", f"server_args=ServerArgs(admin_api_key='{PLAIN}', port=30000)", PLAIN, "port=30000"),
    _one("dict of Python", f"{{'api_key': '{PLAIN}', 'port': 30000}}", PLAIN, "'port': 30000"),
    _one("bytes of Python", f"{{b'api_key': b'{PLAIN}', b'port': 1}}", PLAIN),
    _one("SecretStr gone wrong", f"Settings(password=SecretStr('{PLAIN}'), tp=2)", PLAIN, "tp=2"),
    _one("JSON", json.dumps({"api_key": HEX, "port": 30000}), HEX, "30000"),
    _one("JSON, camel case", json.dumps({"apiKey": PLAIN, "accessKeyId": HEX, "tp": 4}), PLAIN, '"tp": 4'),
    _one("JSON with quotes in it", json.dumps({"password": 'a"b' + PLAIN, "port": 1}), PLAIN, '"port": 1'),
    _one("JSON in JSON", json.dumps({"line": json.dumps({"api_key": PLAIN, "tp": 4})}), PLAIN, "tp"),
    _one("JSON in JSON in JSON", json.dumps(json.dumps(json.dumps({"secret": PLAIN, "tp": 4}))), PLAIN, "tp"),
    _one("JSON list of secrets", json.dumps({"api_keys": [PLAIN, HEX], "tp": 4}), HEX, '"tp": 4'),
    _one("number as password", '{"password": 8273645190, "port": 30000}', "8273645190", "30000"),
    _one("pair", json.dumps([["HF_TOKEN", PLAIN], ["UCX_TLS", "tcp"]]), PLAIN, '"tcp"'),
    _one("tuple", f"env=(('HF_TOKEN', '{PLAIN}'), ('UCX_TLS', 'tcp'))", PLAIN, "'tcp'"),
    _one("name and value", json.dumps({"name": "HF_TOKEN", "value": PLAIN}), PLAIN, "HF_TOKEN"),
    _one("YAML", f"api-key: {PLAIN}\nport: 30000\n", PLAIN, "port: 30000"),
    _one("YAML with odd letters", f"  password: {ODD}  # of the store\n  port: 1\n", ODD, "port: 1"),
    _one("YAML, quoted", f'hf_token: "{ODD}"\nport: 1\n', ODD, "port: 1"),
    _one("YAML block", f"private_key: |\n  {PLAIN}\n  more{PLAIN}\nport: 30000\n", PLAIN, "port: 30000"),
    _one("YAML folded", f"password: >-\n    {PLAIN}\nport: 30000\n", PLAIN, "port: 30000"),
    _one(
        "YAML name and value",
        f"env:\n- name: HF_TOKEN\n  value: {PLAIN}\n- name: UCX_TLS\n  value: tcp\n",
        PLAIN,
        "tcp",
    ),
    _one("TOML", f'api_key = "{ODD}"\nport = 30000\n', ODD, "port = 30000"),
    _one("TOML over lines", f'password = """\n{PLAIN}\n"""\nport = 1\n', PLAIN, "port = 1"),
    _one("ini", f"[store]\npassword = {PLAIN}\nport = 30000\n", PLAIN, "port = 30000"),
    _one("Java properties", f"spring.redis.password={PLAIN}\nport=1\n", PLAIN, "port=1"),
    _one("XML", f"<password>{ODD.replace('&', '.')}</password><port>1</port>", ODD.replace("&", "."), "<port>1</port>"),
    _one("XML attribute", f'<add key="ApiKey" value="{PLAIN}" /><add key="Port" value="30000" />', PLAIN, "30000"),
    _one("redis.conf", f"requirepass {PLAIN}\nport 6379\n", PLAIN, "port 6379"),
    _one("env file", f"TP=4\nPASSWORD={ODD}\nPORT=30000\n", ODD, "PORT=30000"),
    _one("connection string", f"AccountName=a;AccountKey={BASE}==;EndpointSuffix=core", BASE, "AccountName=a"),
    _one("lib pq", f"host=10.0.0.5 port=5432 user=u password={PLAIN} dbname=d", PLAIN, "host=10.0.0.5 port=5432"),
    _one("DSN", f"SENTRY_DSN=https://{HEX}@sentry.local/4", HEX),
    _one("named in prose", f"using API key {HEX} for http://10.0.0.1:30000", HEX, "10.0.0.1:30000"),
    _one("password is", f"the admin password is '{PLAIN}'", PLAIN),
    _one("cut off", f"ServerArgs(tp_size=4, api_key='{PLAIN}", PLAIN, "tp_size=4"),
)
ENVIRONMENTS = (
    _one(
        "os.environ",
        f"environ({{'HOME': '/root', 'UCX_TLS': 'tcp', 'MY_THING': '{PLAIN}'}})",
        PLAIN,
        "'UCX_TLS': 'tcp'",
    ),
    _one("env", f"HOSTNAME=n1\nUCX_TLS=tcp\nMY_THING={PLAIN}\nNCCL_DEBUG=INFO\n", PLAIN, "UCX_TLS=tcp"),
    _one("declare -x", f'declare -x A="1"\ndeclare -x MY_THING="{PLAIN}"\ndeclare -x UCX_TLS="tcp"\n', PLAIN, "tcp"),
    _one("/proc/PID/environ", f"A=1\0MY_THING={PLAIN}\0UCX_TLS=tcp\0", PLAIN, "UCX_TLS=tcp"),
    _one("docker inspect", json.dumps({"Env": ["A=b", f"MY_THING={PLAIN}", "UCX_TLS=tcp"]}, indent=1), PLAIN, "tcp"),
    _one("pod", f"- name: MY_THING\n  value: {PLAIN}\n- name: NCCL_DEBUG\n  value: INFO\n", PLAIN, "INFO"),
    _one(
        "pod of JSON",
        json.dumps([{"name": "MY_THING", "value": PLAIN}, {"name": "UCX_TLS", "value": "tcp"}]),
        PLAIN,
        "tcp",
    ),
    _one(
        "allowed name, secret value",
        f"UCX_TLS=tcp\nHTTP_PROXY=http://u:{PLAIN}@proxy:3128\nNCCL_DEBUG=INFO\n",
        PLAIN,
        "proxy:3128",
    ),
    _one(
        "allowed family, secret name",
        f"SLURM_JWT={JWT}\nUCX_TLS=tcp\nMC_REDIS_PASSWORD={PLAIN}\n",
        PLAIN,
        "UCX_TLS=tcp",
    ),
)
HTTP = (
    _one("authorization", f"Authorization: Bearer {LETTERS}", LETTERS),
    _one("basic", f"Authorization: Basic {USERS}", USERS),
    _one("no scheme", f"authorization: {LETTERS}\nhost: 10.0.0.1:30000", LETTERS, "10.0.0.1:30000"),
    _one("digest", f'Authorization: Digest username="a", realm="r", response="{HEX}"\nhost: h', HEX, "host: h"),
    _one("AWS signature", f"Authorization: AWS4-HMAC-SHA256 Credential={AWS_ID}/20261122, Signature={HEX}", HEX),
    _one(
        "headers of Python",
        f"headers={{'Authorization': 'Bearer {PLAIN}', 'Host': '10.0.0.1:30000'}}",
        PLAIN,
        "10.0.0.1:30000",
    ),
    _one(
        "headers of ASGI",
        f"[(b'authorization', b'Bearer {PLAIN}'), (b'host', b'10.0.0.1:30000')]",
        PLAIN,
        "10.0.0.1:30000",
    ),
    _one("cookie", f"Cookie: session={HEX}; csrftoken={PLAIN}\r\nHost: 10.0.0.1\r\n", PLAIN, "Host: 10.0.0.1"),
    _one("set-cookie", f"set-cookie: sid={HEX}; HttpOnly\ncontent-length: 12", HEX, "content-length: 12"),
    _one(
        "headers in one string",
        f"'GET / HTTP/1.1\\r\\nX-Api-Key: {PLAIN}\\r\\nHost: 10.0.0.1:30000\\r\\n'",
        PLAIN,
        "10.0.0.1:30000",
    ),
    _one("query", f"GET /v1/models?api_key={PLAIN}&limit=3 HTTP/1.1", PLAIN, "limit=3"),
    _one(
        "signed URL", f"https://b.s3.local/m?X-Amz-Credential={AWS_ID}%2F1&X-Amz-Signature={HEX}&x=1", HEX, "b.s3.local"
    ),
    _one(
        "shared access signature",
        f"https://a.blob.local/m?sv=2024&sig={quote(BASE + '=', safe='')}&sp=r",
        BASE,
        "sv=2024",
    ),
    _one("URL with a password", f"http://me:{PLAIN}@10.0.0.1:30000/health", PLAIN, "@10.0.0.1:30000/health"),
    _one("URL with an odd password", "postgres://me:p@ss/w0rd-xyz@10.0.0.1:5432/db", "w0rd-xyz", "10.0.0.1:5432"),
    _one("URL with a token", f"https://{LETTERS}@github.local/org/repo.git", LETTERS, "github.local/org/repo.git"),
    _one("URL without a user", f"redis://:{PLAIN}@10.0.0.1:6379/0", PLAIN, "10.0.0.1:6379"),
    _one("no scheme in front", f"proxy me:{PLAIN}@10.0.0.1:3128 refused", PLAIN, "10.0.0.1:3128"),
    _one("URL in a URL", f"next={quote(f'http://me:{PLAIN}@10.0.0.1/', safe='')}", PLAIN),
    _one("form of a URL", f"body={quote(f'api_key={PLAIN}&tp=4', safe='')}", PLAIN),
    _one(
        "web hook", "https://hooks.slack.com/services/" + "T0AB1CD2E/B0AB1CD2E/" + LETTERS, LETTERS, "hooks.slack.com"
    ),
)
FILES = (
    _one("PEM", f"before\n{PEM}\nafter 10.0.0.1", BODY.splitlines()[1], "after 10.0.0.1"),
    _one("PEM in JSON", json.dumps({"tls": PEM, "port": 30000}), BODY.splitlines()[1], "30000"),
    _one(
        "PEM behind log prefixes",
        "\n".join(f"[2026-11-22 10:00:0{at}] {line}" for at, line in enumerate(PEM.splitlines())),
        BODY.splitlines()[1],
    ),
    _one("PEM, cut off", "-----BEGIN RSA " + f"PRIVATE KEY-----\n{BODY}", BODY.splitlines()[2]),
    _one(
        "SSH key",
        "-----BEGIN OPENSSH " + f"PRIVATE KEY-----\n{BODY}\n-----END OPENSSH " + "PRIVATE KEY-----",
        BODY.splitlines()[0],
    ),
    _one(
        "Secret of Kubernetes",
        f"kind: Secret\nmetadata:\n  name: hf\ndata:\n  anything: {USERS}\n  b: {LETTERS}\n---\nkind: Pod\nspec: x\n",
        LETTERS,
        "kind: Pod",
    ),
    _one("stringData", f"apiVersion: v1\nkind: Secret\nstringData:\n  anything: {PLAIN}\n", PLAIN, "apiVersion: v1"),
    _one(
        "Secret as JSON",
        json.dumps({"kind": "Secret", "metadata": {"name": "hf"}, "data": {"x": LETTERS}}),
        LETTERS,
        '"hf"',
    ),
    _one("docker config", json.dumps({"auths": {"registry.local": {"auth": USERS}}}), USERS, "registry.local"),
    _one(
        "dockerconfigjson",
        f".dockerconfigjson: {base64.b64encode(json.dumps({'auth': USERS}).encode()).decode()}",
        base64.b64encode(json.dumps({"auth": USERS}).encode()).decode(),
    ),
    _one("netrc", f"machine api.local login alice password {PLAIN}\n", PLAIN, "machine api.local"),
    _one("netrc over lines", f"machine api.local\n  login alice\n  password {PLAIN}\n", PLAIN, "machine api.local"),
    _one("pgpass", f"10.0.0.1:5432:db:alice:{PLAIN}\n", PLAIN, "10.0.0.1:5432"),
    _one("git credentials", f"https://alice:{PLAIN}@github.local\n", PLAIN, "github.local"),
    _one(
        "AWS credentials",
        f"[default]\naws_access_key_id = {AWS_ID}\naws_secret_access_key = {BASE}\n",
        BASE,
        "[default]",
    ),
    _one(
        "kubeconfig",
        f"users:\n- name: a\n  user:\n    client-key-data: {BASE}\n    token: {LETTERS}\n",
        LETTERS,
        "users:",
    ),
    _one("pip.conf", f"index-url = https://__token__:{PLAIN}@mirror.local/simple\n", PLAIN, "mirror.local/simple"),
    _one("npmrc", f"//registry.local/:_authToken={LETTERS}\n", LETTERS, "registry.local"),
    _one("shadow", "root:$6$Zx81kQw7$" + LETTERS + ":19000:0:99999:7:::\n", LETTERS),
    _one("htpasswd", "alice:$apr1$Zx81kQw7$" + LETTERS + "\n", LETTERS),
    _one(
        "base64 of a password",
        f"payload={base64.b64encode(f'password={PLAIN}'.encode()).decode()}",
        base64.b64encode(f"password={PLAIN}".encode()).decode(),
    ),
)
TOKENS = (
    _one("Hugging Face", f"401 for {HF}, retrying", HF, "retrying"),
    _one("OpenAI", f"key {OPENAI} was used", OPENAI),
    _one("AWS id", f"signed by {AWS_ID} at 10.0.0.1", AWS_ID, "10.0.0.1"),
    _one("AWS secret, bare", f"got {BASE} from the vault", BASE, "from the vault"),
    _one("GitHub", "clone with " + "ghp" + "_" + LETTERS, LETTERS),
    _one("GitLab", "clone with " + "glpat" + "-" + LETTERS, LETTERS),
    _one("Google", "maps " + "AIza" + "SyA" + LETTERS + "xx12345", LETTERS),
    _one("Slack", "bot " + "xoxb" + "-123456789012-" + LETTERS, LETTERS),
    _one("NVIDIA", "ngc " + "nvapi" + "-" + LETTERS, LETTERS),
    _one("PyPI", "upload " + "pypi" + "-AgEI" + LETTERS, LETTERS),
    _one("npm", "publish " + "npm" + "_" + LETTERS, LETTERS),
    _one("Vault", "unwrap " + "hvs" + "." + LETTERS, LETTERS),
    _one("Stripe", "pay " + "sk" + "_live_" + LETTERS, LETTERS),
    _one("JSON web token", f"sub {JWT} ok", JWT.split(".")[2], "ok"),
    _one("token in a path", f"/srv/cache/{HF}/model.safetensors is missing", HF, "model.safetensors is missing"),
    _one("wrapped by a terminal", f"token: {WRAPPED}\nport: 30000\n", WRAPPED.splitlines()[-1], "port: 30000"),
    _one("wrapped by a backslash", f'token="{JWT[:70]}\\\n{JWT[70:]}"\nport=30000\n', JWT[75:], "port=30000"),
)
FORMS = (*COMMAND_LINES, *SETTINGS, *ENVIRONMENTS, *HTTP, *FILES, *TOKENS)
