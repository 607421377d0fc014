#!/usr/bin/env python3
"""`pith serve` with TLS, under a certificate that openssl makes; skipped without openssl."""

import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import server_rig as rig


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.key = os.path.join(cls.folder.name, "key.pem")
        cls.cert = os.path.join(cls.folder.name, "cert.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout",
                        cls.key, "-out", cls.cert, "-days", "2", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_answers(self):
        context = ssl.create_default_context(cafile=self.cert)
        with rig.Server("--ssl-key-file", self.key, "--ssl-cert-file", self.cert,
                        tls=context) as s:
            self.assertIn("https://", s.said)
            self.assertEqual(s.get("/health").code, 200)
            body = {"prompt": "The friend of", "n_predict": 20, "seed": 1, "ignore_eos": True}
            text = s.post("/completion", body).json()["content"]
            parts = s.stream("/completion", dict(body, stream=True)).documents()
            self.assertEqual("".join(d.get("content", "") for d in parts), text)
            stream = s.stream("/completion", dict(body, stream=True, n_predict=7500))
            next(stream.events())
            stream.close()
            s.until("pith_answers_running", 0)
            self.assertLess(s.metric("pith_generated_tokens_total"), 7500)

    def test_keys_that_cannot_be_used(self):
        other, secret = (os.path.join(self.folder.name, n) for n in ("other.pem", "secret.pem"))
        subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out",
                        other], check=True, capture_output=True)
        subprocess.run(["openssl", "pkey", "-in", self.key, "-aes256", "-passout", "pass:x", "-out",
                        secret], check=True, capture_output=True)
        for key, cert, why in ((other, self.cert, "the TLS key and certificate cannot be used"),
                               (secret, self.cert, "the TLS key is encrypted"),
                               (self.cert, self.cert, "the TLS key is no private key in PEM"),
                               (self.key, self.key, "the TLS certificate is none in PEM")):
            done = subprocess.run([rig.PITH, "serve", "-m", rig.MODEL, "--port", "0",
                                   "--ssl-key-file", key, "--ssl-cert-file", cert],
                                  capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 1)
            self.assertIn(why, done.stderr)


if __name__ == "__main__":
    if shutil.which("openssl") is None:
        print("skipped: there is no openssl to make a certificate with")
        sys.exit(77)
    rig.main()
